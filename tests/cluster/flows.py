"""Flows on a cluster, as a test steers them and checks what has come of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock import codec
from penstock.state.store.store import Store
from tests.cluster.flow_process import BATCH, KEYS, RATE, Start

WAIT_S = 180.0
"""A busy machine is no failure."""

Sums = dict[int, tuple[int, int]]
"""Of each key the total and the number of rows."""


class FlowProcess:
    """A flow in a driver of its own. What it writes to stderr goes to a file."""

    def __init__(self, master: str, folder: Path) -> None:
        self.folder, self.log = folder, folder / "driver.log"
        self._master = master
        self._process: subprocess.Popen[str] | None = None
        self._wanted = Start()

    def start(self, wanted: Start) -> None:
        """Start it, again on the same checkpoint if it ran before."""
        self._wanted = wanted
        words = [self._master, str(self.folder), codec.text(wanted)]
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.flow_process", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, expression: str) -> Any:
        """What an expression about `query` gives."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{expression}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver has ended: {self.log.read_text()[-3000:]}"
        return json.loads(line)

    def until(self, expression: str) -> None:
        """Wait for it to be true, as long as the flow runs."""
        ends = time.monotonic() + WAIT_S
        while not self.ask(expression):
            assert self.ask("query.exception() is None"), self.ask("repr(query.exception())")
            assert time.monotonic() < ends, f"not {expression}: {self.ask('query.status')}"
            time.sleep(0.05)

    def goes_on(self, epochs: int = 3) -> None:
        """Wait for so many epochs from now on, and for all hosts to be there."""
        epoch = self.epoch()
        hosts = self._wanted.hosts
        self.until(
            f"not query.is_active or query.progress and query.progress[-1].epoch >= {epoch} + {epochs}"
            f" and query.status.pending_slots == 0 and len(query.status.hosts) >= {hosts}"
        )

    def epoch(self) -> int:
        """The newest epoch that is done."""
        found: int = self.ask("query.progress[-1].epoch if query.progress else -1")
        return found

    def hosts(self) -> dict[str, int]:
        """The processes of hosts, by their names."""
        found: dict[str, int] = self.ask("query.status.hosts")
        return found

    def couriers(self) -> dict[str, int]:
        """The processes of live couriers, by their names."""
        found: dict[str, int] = self.ask("query.status.couriers")
        return found

    def kill(self) -> None:
        """Kill the driver with its JVM."""
        assert self._process is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        for process in [*family, self._process]:
            process.kill()
        self._process.communicate()
        psutil.wait_procs(family)

    def await_end(self) -> None:
        """Wait until a flow that ends has ended, and then for its driver."""
        self.until("not query.is_active")
        assert self.ask("query.exception() is None"), self.ask("repr(query.exception())")
        self._leave("finished")

    def stop(self) -> None:
        """Stop the flow, and wait for its driver."""
        self._leave("stopped")

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def result(self) -> Sums:
        """What the sink has of each key."""
        files = sorted((self.folder / "out").rglob("*.parquet"))
        rows = pa.concat_tables(
            pq.read_table(file, columns=["key", "total", "n"], partitioning=None) for file in files
        ).to_pylist()
        found: Sums = {}
        for row in rows:
            before = found.get(row["key"], (0, 0))
            found[row["key"]] = max((row["total"], row["n"]), before, key=lambda sums: sums[1])
        return found

    def oracle(self) -> Sums:
        """What it must have."""
        return (
            wanted_live(self._wanted.rows) if self._wanted.live else wanted_batches(self.epochs())
        )

    def epochs(self) -> int:
        """How many epochs are durable."""
        return Store(str(self.folder / "checkpoint/penstock")).epochs()[-1] + 1

    def _leave(self, state: str) -> None:
        assert self._process is not None
        told, _ = self._process.communicate(timeout=WAIT_S)
        assert json.loads(told.splitlines()[-1]) == state
        assert self._process.returncode == 0


def wanted_batches(epochs: int) -> Sums:
    rows = range(BATCH * epochs)
    return {key: (sum(rows[key::KEYS]), len(rows[key::KEYS])) for key in range(KEYS)}


def wanted_live(rows: int) -> Sums:
    made = ps.rate(RATE, keys=KEYS, rows=rows, partitions=2)
    first = made.first(made.partitions())
    reader = made.reader({name: at | {"start_ms": 0} for name, at in first.items()})
    found: Sums = {}
    while not reader.ended:
        for polled in reader.poll(10, 100_000):
            columns = (polled.batch.column(name).to_pylist() for name in ("key", "value"))
            for key, value in zip(*columns, strict=True):
                total, n = found.get(key, (0, 0))
                found[key] = (total + value, n + 1)
    return found


def executor_of(pid: int) -> psutil.Process:
    """The executor's JVM in which a task's Python process runs."""
    return next(
        one for one in psutil.Process(pid).parents() if "CoarseGrained" in " ".join(one.cmdline())
    )


def await_condition(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited too long"
        time.sleep(0.05)


KILL = signal.SIGKILL
