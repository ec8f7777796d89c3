"""Burst workers as processes, killed and stopped while couriers wait for them."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.offload.backends.local.backend import LocalFunctions, LocalWorkers
from penstock.wire.access import Access
from tests.offload.backends.flows import counting, slow_or_wrong
from tests.offload.in_process import Helped
from tests.trials.cluster import cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(120)

FLOW = counting(slow_or_wrong)
EPOCHS = 8


class Wrecker:
    """Kills or stops busy burst workers, up to a number of times."""

    def __init__(self, started: LocalWorkers, times: int) -> None:
        self.done: list[signal.Signals] = []
        self._started, self._times = started, times
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wreck)
        self._thread.start()

    def _wreck(self) -> None:
        while len(self.done) < self._times and not self._over.wait(0.005):
            busy = [pid for pid, what in self._started.up().items() if what == "busy"]
            if busy:
                how = (signal.SIGKILL, signal.SIGSTOP)[len(self.done) % 2]
                with suppress(ProcessLookupError):
                    os.kill(random.choice(busy), how)
                    self.done.append(how)
                self._over.wait(0.1)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def some_rows(seed: int) -> list[Row]:
    """Rows of which each part keeps a burst worker busy for about a tenth of a second."""
    pick = random.Random(seed)
    slow = [{"k": "slow", "v": 3} for _ in range(60)]
    return [*slow, *({"k": f"k{pick.randrange(50)}", "v": pick.randrange(9)} for _ in range(300))]


def test_burst_workers_are_killed_and_stopped_in_the_middle(tmp_path: Path) -> None:
    totals: dict[str, int] = {}
    functions = LocalFunctions(at_most=3, keep_warm=3)
    access = Access("token", functions=functions)
    started = functions.start(FLOW, "run", access)
    by = Helped(FLOW, started.reach, seed=4, deadline_ms=600)
    by.chance = 1.0
    wrecker = Wrecker(started, times=6)
    answered = returned = 0
    try:
        with cluster(FLOW, str(tmp_path), hosts=2, helped=by, access=access) as on:
            for number in range(EPOCHS):
                parts = [some_rows(2 * number), some_rows(2 * number + 1)]
                on.run(parts)
                touched = {row["k"] for part in parts for row in part}
                for part in parts:
                    for row in part:
                        totals[row["k"]] = totals.get(row["k"], 0) + 2 * row["v"]
                output = {row["k"]: row["total"] for row in on.sink[number]}
                assert output == {key: totals[key] for key in touched}
                for seen in on.registry.seen():
                    for entry in seen.offloaded:
                        returned += entry.returned
                        answered += entry.records
    finally:
        wrecker.end()
        used = started.used()
        started.stop()
    assert answered > 0
    assert returned > 0
    assert {signal.SIGKILL, signal.SIGSTOP} <= set(wrecker.done)
    assert used.failed >= 2
