"""The compared sides: their titles, their tasks, and how each is started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock_bench.live.arena import bench_path, flink_python, peers_path

_ALL = ("pass_through", "sum", "windowed", "python_fn")


@dataclass(frozen=True)
class Engine:
    """One side: an engine, and the API of it that is used."""

    title: str
    module: str
    tasks: tuple[str, ...]
    word: str = ""
    """Names the API, where the module has several."""
    package: str = ""
    """The package that must be installed; empty for Spark and Penstock, which always are."""


ENGINES = {
    "penstock": Engine("Penstock", "spark_side", _ALL, "penstock"),
    "native_hdfs": Engine("Spark, default store", "spark_side", _ALL[:3], "native_hdfs"),
    "native_rocksdb": Engine("Spark, RocksDB", "spark_side", ("sum", "windowed"), "native_rocksdb"),
    "spark_python": Engine("Spark, state in Python", "spark_side", ("python_fn",), "python_state"),
    "flink_sql": Engine("Flink SQL", "flink_side", _ALL[:3], "sql", "pyflink"),
    "flink_sql_batched": Engine(
        "Flink SQL, mini-batches", "flink_side", ("sum",), "batched", "pyflink"
    ),
    "flink_table": Engine("PyFlink, Table API", "flink_side", ("python_fn",), "table", "pyflink"),
    "flink_datastream": Engine("PyFlink, DataStream", "flink_side", _ALL, "datastream", "pyflink"),
    "bytewax": Engine("Bytewax", "bytewax_side", _ALL, package="bytewax"),
    "pathway": Engine("Pathway", "pathway_side", _ALL, package="pathway"),
}


def missing(engine: Engine) -> str:
    """Why an engine cannot run here; empty if it can."""
    if not engine.package:
        return ""
    if engine.package == "pyflink":
        found = list(flink_python().parent.parent.glob("lib/python*/site-packages/pyflink"))
    else:
        found = list(Path(peers_path()).glob(engine.package)) if peers_path() else []
    return "" if found else f"{engine.package} is not installed: make peers"


def run(engine: Engine, task: str, how: str, seconds: float, folder: Path, limit_s: float) -> Any:
    """Run a side in a process of its own; what it prints at its end.

    Its log is kept in the folder. All its processes are ended after `limit_s` seconds.
    """
    folder.mkdir(parents=True)
    python = str(flink_python()) if engine.package == "pyflink" else sys.executable
    path = [peers_path()] if engine.package in ("bytewax", "pathway") else []
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([*path, bench_path()]),
        "PATHWAY_THREADS": "2",
    }
    module = f"penstock_bench.peers.sides.{engine.module}"
    words = [task, how, str(seconds), str(folder), *([engine.word] if engine.word else [])]
    # Into files: a Java server that outlives its side would hold a pipe open.
    with (folder / "side.log").open("w") as log, (folder / "result").open("w") as result:
        process = subprocess.Popen(
            [python, "-m", module, *words],
            env=env,
            stdout=result,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise PenstockError(f"it took more than {limit_s:.0f} s") from None
        finally:
            _end_group(process)
    if process.returncode:
        tail = (folder / "side.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise PenstockError(f"it ended with {process.returncode}: {' '.join(tail)[-300:]}")
    return json.loads((folder / "result").read_text().splitlines()[-1])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a side's processes: Java servers and workers outlive a parent that failed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
