#!/bin/sh
# What Spark on Kubernetes starts in a pod: "driver" or "executor" with the variables that Spark sets; any
# other command is run as it is. It does what the entrypoint of Spark's own images does, for an installation
# from the Python package.
set -eu

# Java and Hadoop want a name for the user, whom Kubernetes may give a number that nobody knows.
if ! getent passwd "$(id -u)" >/dev/null && [ -w /etc/passwd ]; then
    echo "penstock:x:$(id -u):$(id -g):penstock:/tmp:/bin/false" >> /etc/passwd
fi
export HADOOP_USER_NAME="${HADOOP_USER_NAME:-penstock}"

classpath="${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*"
[ -n "${HADOOP_CONF_DIR:-}" ] && classpath="$HADOOP_CONF_DIR:$classpath"
[ -n "${SPARK_CONF_DIR:-}" ] && classpath="$SPARK_CONF_DIR:$classpath"

case "${1:-}" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    # Spark sets one variable for each option of the JVM: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on.
    number=0
    set --
    while :; do
        eval "option=\${SPARK_JAVA_OPT_$number:-}"
        [ -n "$option" ] || break
        set -- "$@" "$option"
        number=$((number + 1))
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
