"""Spark sessions with Penstock's settings, and checks whether a session has room for hosts and couriers."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import InheritableThread

import penstock
from penstock.errors import SettingError
from penstock.spark.connector import with_connector
from penstock.spark.executors import cores_of_tasks
from penstock.spark.known_settings import known_settings, shipped_package
from penstock.spark.private import (
    executors,
    handled,
    has_default_log,
    is_local,
    keep_jobs_on_interrupt,
    mark_handled,
    named,
    quiet_handled_failures,
    running_settings,
    setting,
)
from penstock.spark.s3a import with_s3a

_log = logging.getLogger("penstock.query")

EXECUTORS_S = 60.0
"""Most seconds to wait for the executors of a new session."""
_LOOK_S = 0.1
"""Seconds between checks for executors."""
_LINES = 40
"""Number of lines of Spark's log that are shown after a failure."""

_SETTINGS = {
    # The default manager forks a process for both log writes of a trigger: 45-60 ms instead of 6-12.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
    # A courier works batch by batch, and large batches cost less per row. With a limit in bytes, Spark
    # computes the size of the whole batch again for every row.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "25000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Over TCP, the end of a batch waits for an acknowledgement on its way to Python and back, which costs
    # some 20 ms per epoch. A Unix socket does not.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers are forked with Arrow, numba and Penstock loaded, so hosts start, and couriers restart after a
    # failed epoch, a second or more earlier.
    "spark.python.daemon.module": "penstock.spark.daemon",
    # Spark starts a daemon for each set of environment variables. Otherwise tasks of DataFrames (couriers)
    # and of RDDs (hosts) differ in this one, and the first epoch waits for a second daemon to load it all.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # There is no shuffle to adapt, and planning is faster without it.
    "spark.sql.adaptive.enabled": "false",
    # Many processes share the cores, so each has one thread, unless a host needs more.
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
    "spark.executorEnv.NUMBA_NUM_THREADS": "1",
    # Couriers of a cancelled run hold their task slots until their processes are killed, and the next run
    # needs the slots. Spark's default is two seconds.
    "spark.python.task.killTimeout": "200ms",
    # A task asks other executors for the code of its stage before it asks the driver. If the network to one
    # of them drops packets, Spark's defaults let it wait for two minutes, four times.
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.shuffle.io.connectionCreationTimeout": "3s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
}

_LIVENESS = {
    "spark.executor.heartbeatInterval": "3s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "30s",
    "spark.network.timeoutInterval": "5s",
}
"""Settings with which Spark gives up an unreachable executor after half a minute instead of two to three.
Until then it sends tasks to it. A shorter time would lose executors when the driver itself pauses. Spark
rejects inconsistent values, so these are set together or not at all."""

_ELASTIC = {
    # Removes the executor of an ended host soon. Executors of couriers are seldom idle that long.
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    # Announces the removal of a machine, so that hosts can move away before.
    "spark.decommission.enabled": "true",
}
"""Additional settings for dynamic allocation."""

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Additional defaults of `session`."""

SECURED = (
    *("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled"),
    *("spark.io.encryption.enabled", "spark.authenticate"),
)
"""Settings that protect Spark's own network traffic and files."""


def plain_beside(conf: Mapping[str, str], tls: bool) -> str:
    """A warning if Spark is secured by these settings and Penstock is not; else "".

    >>> plain_beside({"spark.authenticate": "true"}, tls=False)
    'Spark is secured by spark.authenticate, but rows and tokens of this flow are sent unencrypted: \
set Settings(tls=...)'
    >>> plain_beside({"spark.authenticate": "true"}, tls=True), plain_beside({}, tls=False)
    ('', '')
    """
    secured = [name for name in SECURED if conf.get(name, "").strip().lower() == "true"]
    if tls or not secured:
        return ""
    return (
        f"Spark is secured by {', '.join(secured)}, but rows and tokens of this flow are sent unencrypted: "
        "set Settings(tls=...)"
    )


def configure(
    builder: SparkSession.Builder, *, kafka: bool = False, s3: bool = False
) -> SparkSession.Builder:
    """Add Penstock's settings to a session builder of your own. With `kafka`, add Spark's Kafka connector;
    with `s3`, add Hadoop's file system for S3 (see `session`). Existing settings stay: those of the builder,
    of spark-submit, of spark-defaults.conf, of the environment, and of a running session.

    >>> from pyspark.sql import SparkSession
    >>> builder = configure(SparkSession.builder.appName("mine"))
    """
    known = known_settings(builder, os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", known.get("spark.pyspark.python", sys.executable))
    shipped = shipped_package(known)
    # The daemon must find Penstock already when it starts, before its workers do.
    brought = {} if shipped is None else {"spark.executorEnv.PYTHONPATH": shipped}
    timed = known.keys() & {"spark.network.timeout", *_LIVENESS}
    dynamic = known.get("spark.dynamicAllocation.enabled") == "true"
    defaults = _SETTINGS | brought | ({} if timed else _LIVENESS) | (_ELASTIC if dynamic else {})
    builder = _with_defaults(builder, defaults, known)
    if kafka and (jars := with_connector(known)) is not None:
        builder = builder.config("spark.jars", jars)
    if s3 and (jars := with_s3a(known_settings(builder, os.environ))) is not None:
        builder = builder.config("spark.jars", jars)
    return builder


def _with_defaults(
    builder: SparkSession.Builder, defaults: dict[str, str], known: dict[str, str]
) -> SparkSession.Builder:
    for key in defaults.keys() - known.keys():
        builder = builder.config(key, defaults[key])
    return builder


def session(
    app: str = "penstock",
    *,
    cores: int | None = None,
    master: str | None = None,
    ui: bool = False,
    kafka: bool = False,
    s3: bool = False,
    conf: dict[str, str] | None = None,
) -> SparkSession:
    """Create a Spark session for flows. It is local, unless `master`, spark-submit or spark-defaults.conf
    says otherwise. `conf` overrides all other settings; the rest is as in `configure`.

    In local mode `cores` is the number of task slots. A host holds one, and couriers need one per source
    partition. There may be more slots than the machine has cores. Failed tasks are retried, as on a cluster.

    `kafka` adds Spark's Kafka connector, which flows in micro-batches need to read and write Kafka. Unless
    `spark.jars`, `spark.jars.packages` or Spark's own jars have it, it is downloaded once from Maven Central
    and added to `spark.jars`, which ships it to executors. `s3` adds Hadoop's s3a in the same way, for
    checkpoints of flows in micro-batches.

    Spark logs errors only, and nothing about failures of hosts and couriers, which Penstock handles and logs.
    Set `spark.log.level` to change that.
    """
    if master is not None and cores is not None:
        raise SettingError(
            "session() got both master and cores",
            hint='put the cores into the master: master="local[8]"',
        )
    slots = cores if cores is not None else max(8, 2 * (os.cpu_count() or 1))
    chosen = {"spark.app.name": app}
    if master is not None or cores is not None:
        chosen["spark.master"] = master or f"local[{slots},4]"
    if ui:
        chosen["spark.ui.enabled"] = "true"
    chosen |= conf or {}
    builder = SparkSession.Builder().config(map={**chosen})
    quiet = _QUIET | {"spark.master": f"local[{slots},4]"}
    running, known = running_settings(), known_settings(builder, os.environ)
    verbose = "spark.log.level" in known  # the user has chosen what Spark logs
    builder = _with_defaults(builder, quiet, known)
    builder = configure(builder, kafka=kafka, s3=s3)
    # While the JVM starts, which takes longer.
    loading = threading.Thread(target=_load, name="penstock-load")
    loading.start()
    try:
        spark = builder.getOrCreate()
    finally:
        loading.join()
    if not running and not verbose and has_default_log(spark):
        quiet_handled_failures(spark)
    if not running and is_local(spark):
        _warm_up(spark)
    if ignored := ignored_settings(chosen, running):
        _log.warning(
            "Settings ignored, since this process has a Spark session already: %s. Stop that session first "
            "to change them.",
            ", ".join(ignored),
            extra={"settings": ignored},
        )
    return spark


def _load() -> None:
    """Load the modules that a flow needs in the driver."""
    with suppress(ImportError):  # the flow will say what is missing
        penstock.flow  # noqa: B018 - the first use of a public name loads its modules


def _warm_up(spark: SparkSession) -> threading.Thread:
    """Run a tiny job like those of couriers, while the program declares its flow. It starts Spark's Python
    daemon (see `penstock.spark.daemon`) and a worker, and loads what Spark needs for SQL, its generated code
    and Arrow. Nobody waits for it, and nobody minds if it fails, as when the session is stopped at once."""
    context = spark.sparkContext

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def work() -> None:
        with suppress(Exception), named(context, "Penstock starts Python workers"), handled(spark):
            mark_handled(context)
            one = spark.range(0, 1, 1, 1).mapInArrow(passed, "id long")
            one.write.format("noop").mode("append").save()

    warming = InheritableThread(target=work, name="penstock-daemon", daemon=True)
    warming.start()
    return warming


def ignored_settings(chosen: Mapping[str, str], running: Mapping[str, str]) -> list[str]:
    """Names of chosen settings that differ from those of a running session and cannot change any more.
    Settings of Spark SQL can always change, and so are never ignored.

    >>> ignored_settings({"spark.master": "local[8,4]", "spark.sql.a": "1"}, {"spark.master": "local[2]"})
    ['spark.master']
    """
    changeable = ("spark.sql.", "spark.app.name")
    return [
        key
        for key, value in chosen.items()
        if running and running.get(key) != value and not key.startswith(changeable)
    ]


@contextmanager
def quiet_session(
    app: str, cores: int, conf: dict[str, str] | None = None, master: str | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block, for a process without another session.

    Spark and its workers write stderr to a file; its last lines are shown if the block fails. Ctrl-C only
    raises KeyboardInterrupt.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-log-") as folder:
        log = Path(folder, "stderr")
        try:
            with _stderr_to(log):
                spark = session(app, cores=None if master else cores, master=master, conf=conf)
            keep_jobs_on_interrupt()
            try:
                yield spark
            finally:
                spark.stop()
        except Exception:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            print(*lines[-_LINES:], sep="\n", file=sys.stderr)
            raise


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect the stderr of processes that are started inside the block to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def check_session(source: DataFrame | SparkSession) -> None:
    """Raise a `SettingError` if hosts and couriers cannot work in the session of this source."""
    if type(source).__module__.startswith("pyspark.sql.connect"):
        raise SettingError(
            "this is a Spark Connect session, whose driver is elsewhere: hosts and couriers "
            "need the driver's SparkContext",
            hint="create the session with ps.session(), or ps.configure(SparkSession.builder"
            '.master(...)), without "remote" and without SPARK_REMOTE in the environment',
        )
    spark = source.sparkSession if isinstance(source, DataFrame) else source
    if setting(spark.sparkContext, "spark.speculation") == "true":
        raise SettingError(
            "spark.speculation is on: Spark would start second copies of hosts, which run as long as the "
            "query, and of couriers that wait for them",
            hint="create the session with spark.speculation=false",
        )


def check_cores(
    spark: SparkSession, hosts: int, couriers: int = 1, patience_s: float = 0.0
) -> None:
    """Raise a `SettingError` if the session has too few task slots. A host, or a courier of a live flow,
    holds one as long as the query runs; other couriers need at least one together. Executors of a new session
    may still be starting, so this waits for them for up to `patience_s` seconds."""
    needed, slots = hosts + couriers, task_slots(spark)
    until = time.monotonic() + (0.0 if is_local(spark) else patience_s)
    while slots is not None and slots < needed and time.monotonic() < until:
        time.sleep(_LOOK_S)
        slots = task_slots(spark)
    if slots is not None and slots < needed:
        if not is_local(spark) and not executors(spark):
            raise SettingError(
                f"this application has no executor from the master {spark.sparkContext.master}",
                hint="check that workers run, and that one of them has the memory (spark.executor.memory) "
                "and the cores (spark.executor.cores) of an executor free",
            )
        more = (
            f"start the session with ps.session(cores={(needed + 1) * task_cores(spark)}) or more; "
            "in local mode that may be more than the machine has"
            if is_local(spark)
            else "give the application more cores, or turn on dynamic allocation"
        )
        beside = "a courier" if couriers == 1 else f"{couriers} couriers"
        raise SettingError(
            f"{hosts} hosts and {beside} need {needed} task slots, but the master "
            f"{spark.sparkContext.master} has {slots}",
            hint=f"use fewer hosts, or {more}",
        )


def task_slots(spark: SparkSession) -> int | None:
    """Number of tasks that can run at the same time on the current executors; None if that is unknown or
    changes with the load. Without any executor, Spark says 2."""
    return TaskSlots(spark).now


class TaskSlots:
    """Number of task slots, for repeated questions: settings do not change, so they are read once."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = context = spark.sparkContext
        elastic = setting(context, "spark.dynamicAllocation.enabled") == "true"
        self._unknown = elastic or setting(context, "spark.default.parallelism") != ""
        self._cores = task_cores(spark)
        self._fixed = self._look() if is_local(spark) else None

    @property
    def now(self) -> int | None:
        """Number of slots on the current executors; None if that is unknown or changes with the load."""
        return self._fixed or self._look()

    def _look(self) -> int | None:
        return None if self._unknown else self._context.defaultParallelism // self._cores


def task_cores(spark: SparkSession) -> int:
    """Number of cores per task."""
    return cores_of_tasks(spark.sparkContext)
