"""A Spark session that leaves the terminal alone, with its log at hand if something goes wrong."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as ps

_LINES = 40
"""Of the log, shown when something went wrong."""


@contextmanager
def quiet_spark(app: str, cores: int, log: Path) -> Iterator[SparkSession]:
    """A local session that ends with the block. On an error, the end of its log goes to stderr."""
    try:
        with _stderr_to(log):
            spark = ps.session(app, cores=cores)
        # PySpark's own handler cancels every job, hosts included, before anybody can stop them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield spark
        finally:
            spark.stop()
    except Exception:
        if log.exists():
            print(
                *log.read_text(errors="replace").splitlines()[-_LINES:], sep="\n", file=sys.stderr
            )
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
