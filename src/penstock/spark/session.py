"""A SparkSession that suits Penstock: task retries on, cheap checkpoint writes, big Arrow batches."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from penstock.errors import SettingError

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
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Give one's own session builder the settings that Penstock wants.

    >>> from pyspark.sql import SparkSession
    >>> builder = configure(SparkSession.builder.appName("mine"))
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def session(
    app: str = "penstock",
    *,
    cores: int | None = None,
    master: str | None = None,
    ui: bool = False,
    conf: dict[str, str] | None = None,
) -> SparkSession:
    """A session ready for flows: local unless `master` says otherwise.

    In local mode `cores` is the number of task slots (hosts hold one each, couriers need one per
    source partition); there may be more of them than the machine has cores. Failed tasks are
    retried, as on a cluster.
    """
    if master is not None and cores is not None:
        raise SettingError(
            "session() got both master and cores", hint="write the cores into the master"
        )
    slots = cores if cores is not None else max(8, 2 * (os.cpu_count() or 1))
    builder = configure(
        SparkSession.Builder()
        .appName(app)
        .master(master or f"local[{slots},4]")
        .config("spark.ui.enabled", str(ui).lower())
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
