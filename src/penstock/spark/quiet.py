"""A Spark session for Penstock's own commands: it leaves the terminal to them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.private import keep_jobs_on_interrupt
from penstock.spark.session import session

_LINES = 40
"""Lines of Spark's log that are shown when something went wrong."""


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
