"""Channels that are applied in the order of their tasks, when Spark has fewer task slots than tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.courier.delivery import Task
from penstock.faults import Fault, armed
from penstock.host import server
from penstock.testing.thread_tasks import Batches, ThreadTasks
from tests.trials.cluster import cluster
from tests.trials.ledger import SUMS

SLOTS, ATTEMPTS = 2, 4


class TwoSlots:
    """A job on two task slots. A task that failed comes after all tasks that have not begun."""

    def __init__(self, tasks: ThreadTasks, plan: str, parts: Sequence[Any]) -> None:
        self._tasks, self._plan, self._parts = tasks, plan, parts
        self.waiting = deque(range(len(parts)))
        self.failures: list[int] = []
        """Partitions of failed attempts, in order."""
        self.done: dict[int, Batches] = {}
        self._lock = threading.Lock()

    def run(self) -> Batches:
        with ThreadPoolExecutor(SLOTS) as slots:
            for slot in [slots.submit(self._slot) for _ in range(SLOTS)]:
                slot.result()
        return [batch for partition in sorted(self.done) for batch in self.done[partition]]

    def _slot(self) -> None:
        while True:
            with self._lock:
                if not self.waiting:
                    return
                partition = self.waiting.popleft()
                task = Task(partition, next(self._tasks._numbers))
            outcome: Future[Batches] = Future()
            self._tasks._attempt(self._plan, task, self._parts[partition], outcome)
            with self._lock:
                failed = outcome.exception()
                if failed is None:
                    self.done[partition] = outcome.result()
                    continue
                self.failures.append(partition)
                if self.failures.count(partition) == ATTEMPTS:
                    raise RuntimeError(f"task {partition} failed") from failed
                self.waiting.append(partition)


def test_a_failed_lowest_task_gets_a_slot_from_those_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two task slots, four tasks. The first one fails, and all others wait for it: they give up their turn,
    and not the run."""
    jobs: list[TwoSlots] = []

    def run_job(tasks: ThreadTasks, plan: str, parts: Sequence[Any], reads: int = 1) -> Batches:
        jobs.append(TwoSlots(tasks, plan, parts))
        return jobs[-1].run()

    monkeypatch.setattr(ThreadTasks, "run_job", run_job)
    monkeypatch.setattr(server, "_TURN_S", 1.0)
    parts = [[{"k": 1, "v": 10 * part + n} for n in range(3)] for part in range(4)]
    with cluster(replace(SUMS, ordered=True), str(tmp_path), hosts=2) as on:
        with armed(Fault("courier.sent", OSError, where={"partition": 0, "epoch": 0})) as faults:
            progress = on.run(parts)
        assert faults.fired
        assert progress.runs == 1
        (job,) = jobs
        assert job.failures[0] == 0
        assert set(job.failures[1:]), "no task gave up its turn"
        values = [row["v"] for part in parts for row in part]
        (row,) = on.sink[0]
        assert (row["total"], row["n"]) == (sum(values), len(values))
