"""Flows on a cluster: control over them, and checks of their output."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock import codec
from penstock.live.sources.rate import Keyed
from penstock.state.store.store import Manifest, Store
from tests.cluster.flow_process import BATCH, KEYS, PARTITIONS, Start

WAIT_S = 180.0
"""Seconds that a test waits for a condition: enough for a busy machine."""

Sums = dict[int, tuple[int, int]]
"""Key -> total and number of rows."""


class FlowProcess:
    """A flow in its own driver process. Its stderr goes to a file."""

    def __init__(self, master: str, folder: Path) -> None:
        self.folder, self.log = folder, folder / "driver.log"
        self._master = master
        self._process: subprocess.Popen[str] | None = None
        self._wanted = Start()

    def start(self, wanted: Start) -> None:
        """Start the flow, again on the same checkpoint if it ran before."""
        self._wanted = wanted
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                self.command(wanted),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def command(self, wanted: Start) -> list[str]:
        """The command line of its driver."""
        words = [self._master, str(self.folder), codec.text(wanted)]
        return [sys.executable, "-m", "tests.cluster.flow_process", *words]

    def ask(self, expression: str) -> Any:
        """The value of an expression about `query`."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{expression}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver has ended: {self.log.read_text()[-3000:]}"
        return json.loads(line)

    def until(self, expression: str) -> None:
        """Wait until an expression is true; fail if the flow fails."""
        ends = time.monotonic() + WAIT_S
        while not self.ask(expression):
            assert self.ask("query.exception() is None"), self.ask("repr(query.exception())")
            assert time.monotonic() < ends, f"not {expression}: {self.ask('query.status')}"
            time.sleep(0.05)

    def log_end(self) -> str:
        """The end of the driver's log, without Java's stack traces."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat"))[-3_000:]

    def goes_on(self, epochs: int = 3, hosts: int | None = None) -> None:
        """Wait for this number of further epochs, and until these many hosts are up, or all of the start."""
        epoch = self.epoch()
        hosts = self._wanted.hosts if hosts is None else hosts
        self.until(
            f"query.progress and query.progress[-1].epoch >= {epoch} + {epochs}"
            f" and query.status.pending_slots == 0 and len(query.status.hosts) >= {hosts}"
        )

    def epoch(self) -> int:
        """The newest completed epoch; -1 if there is none."""
        epoch: int = self.ask("query.progress[-1].epoch if query.progress else -1")
        return epoch

    def hosts(self) -> dict[str, int]:
        """Process ids of hosts, by name."""
        hosts: dict[str, int] = self.ask("query.status.hosts")
        return hosts

    def couriers(self) -> dict[str, int]:
        """Process ids of live couriers, by name."""
        couriers: dict[str, int] = self.ask("query.status.couriers")
        return couriers

    def kill(self) -> None:
        """Kill the driver with its JVM."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        family = [*driver.children(recursive=True), driver]
        for process in family:
            process.kill()
        self._process.communicate()
        psutil.wait_procs(family)

    def stop(self) -> None:
        """Stop the flow, and wait for its driver."""
        assert self._process is not None
        output, _ = self._process.communicate(timeout=WAIT_S)
        assert json.loads(output.splitlines()[-1]) == "stopped"
        assert self._process.returncode == 0

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def check(self) -> None:
        """Compare the rows in the sink, and the final totals, with the expected ones."""
        files = sorted((self.folder / "out").rglob("*.parquet"))
        names = ["key", "total", "n"]
        rows = pa.concat_tables(
            pq.read_table(file, columns=names, partitioning=None) for file in files
        )
        twice = rows.group_by(["key", "n"]).aggregate([([], "count_all")])
        assert pc.max(twice["count_all"]).as_py() == 1, "a row is in the sink twice"
        latest = rows.group_by("key").aggregate([("total", "max"), ("n", "max")]).to_pylist()
        sums = {row["key"]: (row["total_max"], row["n_max"]) for row in latest}
        assert sums == (wanted_live if self._wanted.live else wanted_batches)(self.newest())

    def newest(self) -> Manifest:
        """The newest durable manifest."""
        store = Store(str(self.folder / "checkpoint/penstock"))
        manifest = store.read_manifest(store.epochs()[-1])
        assert manifest is not None
        return manifest


def wanted_batches(newest: Manifest) -> Sums:
    """Expected sums of micro-batches up to an epoch."""
    rows = range(BATCH * (newest.epoch + 1))
    return {key: (sum(rows[key::KEYS]), len(rows[key::KEYS])) for key in range(KEYS)}


def wanted_live(newest: Manifest) -> Sums:
    """Expected sums of all rows up to the durable positions."""
    assert newest.positions is not None
    sums: Sums = {}
    for partition, at in newest.positions["0"].items():
        numbers = np.arange(at["row"], dtype=np.int64) * PARTITIONS + int(partition)
        keys, values = Keyed(KEYS).rows(numbers, numbers)
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            total, n = sums.get(key, (0, 0))
            sums[key] = (total + value, n + 1)
    return sums


def executor_of(pid: int) -> psutil.Process:
    """The JVM of the executor that runs a task's Python process."""
    return next(
        one for one in psutil.Process(pid).parents() if "CoarseGrained" in " ".join(one.cmdline())
    )


def await_condition(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.05)
