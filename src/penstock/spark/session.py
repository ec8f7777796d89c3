"""Spark sessions: with the settings that suit Penstock, quiet ones for its own commands, and whether
there is room in one for hosts and couriers."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import SettingError
from penstock.spark.connector import with_connector
from penstock.spark.known_settings import known_settings, shipped_package
from penstock.spark.private import (
    executors,
    has_default_log,
    is_local,
    keep_jobs_on_interrupt,
    quiet_handled_failures,
    running_settings,
)
from penstock.spark.s3a import with_s3a

_log = logging.getLogger("penstock.query")

EXECUTORS_S = 60.0
"""Seconds that the executors of a session may take to come up."""
_LOOK_S = 0.1
"""Seconds between two looks for executors."""
_LINES = 40
"""Lines of Spark's log that are shown when something went wrong."""

_SETTINGS = {
    # The default manager forks a process for each of a trigger's two log writes: 45-60 ms instead of 6-12.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
    # A courier works batch by batch: fewer and larger ones cost less each. With a limit in bytes Spark
    # adds up the size of the whole batch anew for every row that it puts in.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "25000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Over TCP the tail of a batch waits for an acknowledgement, on its way to Python and back: some
    # 20 ms an epoch that a Unix socket does not cost.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers are forked with Arrow, numba and Penstock loaded: a host is up, and couriers are back
    # after a failed epoch, a second or more earlier.
    "spark.python.daemon.module": "penstock.spark.daemon",
    # There is no shuffle to adapt; planning without it is quicker.
    "spark.sql.adaptive.enabled": "false",
    # Many processes share the cores: one thread each, unless a host asks for more.
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
    "spark.executorEnv.NUMBA_NUM_THREADS": "1",
    # The couriers of a run that was given up hold their task slots until their processes are killed, and
    # the next run needs the slots: after a lost executor that was two seconds of Spark's default.
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
"""An executor that hangs, or cannot be reached, is lost after half a minute instead of two to three: until
then Spark sends it tasks. No sooner: the driver may be away for as long, and lose nobody. Spark refuses
values that do not go together, so these are set together, or not at all."""

_ELASTIC = {
    # An executor whose host has ended is let go of soon; one of couriers is seldom idle for so long.
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    # A machine that is taken away gives notice, and what it holds moves before it goes.
    "spark.decommission.enabled": "true",
}
"""The same where executors come and go with the load."""

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""What `session` sets beside them, unless somebody has."""

_SECURED = (
    *("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled"),
    *("spark.io.encryption.enabled", "spark.authenticate"),
)
"""Settings by which Spark itself is protected against who else is on the network or its disks."""


def plain_beside(conf: Mapping[str, str], tls: bool) -> str:
    """What to warn of where Spark is secured by these settings, and Penstock is not; empty: of nothing.

    >>> plain_beside({"spark.authenticate": "true"}, tls=False)
    'Spark is secured by spark.authenticate, but rows and tokens of this flow cross the network as they are: \
set Settings(tls=...)'
    >>> plain_beside({"spark.authenticate": "true"}, tls=True), plain_beside({}, tls=False)
    ('', '')
    """
    found = [name for name in _SECURED if conf.get(name, "").strip().lower() == "true"]
    if tls or not found:
        return ""
    return (
        f"Spark is secured by {', '.join(found)}, but rows and tokens of this flow cross the network as "
        "they are: set Settings(tls=...)"
    )


def configure(
    builder: SparkSession.Builder, *, kafka: bool = False, s3: bool = False
) -> SparkSession.Builder:
    """Give one's own session builder the settings that Penstock wants, with `kafka` Spark's connector for
    it, and with `s3` Hadoop's file system for it (see `session`). What is set already stays: on the
    builder, by spark-submit, in spark-defaults.conf, in the environment, or in a session that runs.

    >>> from pyspark.sql import SparkSession
    >>> builder = configure(SparkSession.builder.appName("mine"))
    """
    known = known_settings(builder, os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", known.get("spark.pyspark.python", sys.executable))
    shipped = shipped_package(known)
    # The daemon must find Penstock when it begins, and not only when its workers do.
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
    """A session ready for flows: local unless `master`, spark-submit or spark-defaults.conf says otherwise.
    What is in `conf` is set, whatever is set elsewhere; the rest is as in `configure`.

    In local mode `cores` is the number of task slots (hosts hold one each, couriers need one per
    source partition); there may be more of them than the machine has cores. Failed tasks are
    retried, as on a cluster.

    With `kafka` it has Spark's connector for Kafka, which flows in micro-batches read and write it by. If
    `spark.jars`, `spark.jars.packages` or Spark's own jars do not have it already, it is taken from Maven
    Central, once, and put into `spark.jars`, which ships it to executors. With `s3` it has Hadoop's s3a
    in the same way, for checkpoints of flows in micro-batches.
    """
    if master is not None and cores is not None:
        raise SettingError(
            "session() got both master and cores", hint="write the cores into the master"
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
    spoken = "spark.log.level" in known  # then somebody wants to see what Spark says
    builder = _with_defaults(builder, quiet, known)
    builder = configure(builder, kafka=kafka, s3=s3)
    spark = builder.getOrCreate()
    if not running and not spoken and has_default_log(spark):
        quiet_handled_failures(spark)
    if ignored := ignored_settings(chosen, running):
        _log.warning(
            "Settings ignored, since this process has a Spark session already: %s. Stop that session first "
            "to change them.",
            ", ".join(ignored),
            extra={"settings": ignored},
        )
    return spark


def ignored_settings(chosen: Mapping[str, str], running: Mapping[str, str]) -> list[str]:
    """Names of settings that were chosen for a session and that the running one has otherwise, if there is
    one. Settings of Spark SQL can change while a session runs, and so are never ignored.

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
    """A session that ends with the block, in a process that has none yet: local, or a master's.

    What Spark and its workers write to stderr goes to a file; its end is shown if the block fails.
    Ctrl-C raises KeyboardInterrupt and does nothing else.
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
    """Processes that are started inside write their errors to the file, as long as they live."""
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
    """Refuse a session, or a DataFrame of one, in which hosts and couriers cannot work."""
    if type(source).__module__.startswith("pyspark.sql.connect"):
        raise SettingError(
            "this is a Spark Connect session, whose driver is elsewhere: hosts and couriers "
            "need the driver's SparkContext",
            hint="make the session with ps.session(), or ps.configure(SparkSession.builder"
            '.master(...)), without "remote" and without SPARK_REMOTE in the environment',
        )
    spark = source.sparkSession if isinstance(source, DataFrame) else source
    if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise SettingError(
            "spark.speculation is on: Spark would start second copies of hosts, which run as long as the "
            "query, and of couriers that wait for them",
            hint="make the session with spark.speculation=false",
        )


def check_cores(
    spark: SparkSession, hosts: int, couriers: int = 1, patience_s: float = 0.0
) -> None:
    """Hosts hold a task slot each, for as long as the query runs, and so do couriers of a live flow; others
    need at least one. Executors of a session that was just made may still be on their way: they are
    waited for, for some seconds at most."""
    needed, slots = hosts + couriers, task_slots(spark)
    until = time.monotonic() + (0.0 if is_local(spark) else patience_s)
    while slots is not None and slots < needed and time.monotonic() < until:
        time.sleep(_LOOK_S)
        slots = task_slots(spark)
    if slots is not None and slots < needed:
        if not is_local(spark) and not executors(spark):
            raise SettingError(
                f"the master {spark.sparkContext.master} has given this application no executor",
                hint="check that workers run, and that one has the memory (spark.executor.memory) and the "
                "cores (spark.executor.cores) free that an executor asks for",
            )
        more = (
            f"start the session with ps.session(cores={(needed + 1) * task_cores(spark)}) or more; "
            "in local mode there may be more of them than the machine has"
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
    """How many tasks can run at a time on the executors that are there now; None where that is not known,
    or changes with the load. Where there is no executor yet, Spark says 2."""
    context = spark.sparkContext
    elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if elastic or context.getConf().get("spark.default.parallelism") is not None:
        return None
    return context.defaultParallelism // task_cores(spark)


def task_cores(spark: SparkSession) -> int:
    """The cores that Spark gives a task."""
    return int(spark.sparkContext.getConf().get("spark.task.cpus", "1"))
