"""Two drivers on one checkpoint: the older one sleeps anywhere in its epoch, and wakes up anywhere in
the newer one's. State is the newer one's, and the older one ends with an error."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.faults import Fault, armed
from tests.trials.cluster import MiniCluster
from tests.trials.trial import FLOWS, Trial, Turn

pytestmark = pytest.mark.timeout(120)

POINTS = {
    "driver.assign": 1,
    "driver.written": 1,
    "driver.sealed": 1,
    "driver.committed": 1,
    "driver.layout": 1,
    "driver.clean": 1,
    "host.seal": 2,
    "host.sealed": 2,
    "host.compact": 3,
    "courier.closed": 2,
    "store.write": 9,
    "store.read": 9,
    "manifest": 1,
    "clean-up": 1,
}
"""Where the older driver may fall asleep, and how often it passes there in an epoch or its upkeep. The
last two are behind its look at the owners: about to write a manifest, about to remove deltas."""
_PATIENCE_S = 20.0


class Sleep:
    """Holds the first to pass a point, until it is woken up."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, where: Mapping[str, object]) -> None:
        if not self.over.is_set():
            self.begun.set()
            assert self.over.wait(_PATIENCE_S)


def fault(point: str, epoch: int, sleep: Sleep, hit: int) -> Fault:
    if point == "manifest":
        return Fault("store.write", sleep, where={"file": f"manifests/{epoch:012d}.json"})
    if point == "clean-up":
        return Fault("store.read", sleep, where={"file": "deltas"})
    return Fault(point, sleep, hits=(hit,))


def trial(seed: int, store: Path) -> bool:
    """One schedule. Returns whether the older driver fell asleep in it."""
    pick = random.Random(seed)
    name = pick.choice(["sums", "ledger"])
    flow, twin = FLOWS[name]
    point = pick.choice(list(POINTS))
    truth, sleep = twin(), Sleep()
    old = MiniCluster(flow, str(store), hosts=pick.choice([1, 2]))
    made, pool = [old], ThreadPoolExecutor(1)
    try:
        before = Trial(name, old, truth)
        for _ in range(pick.randrange(1, 6)):
            before.take(Turn(pick.randrange(1000)))
        rows = before.rows(Turn(pick.randrange(1000)))
        old.now_ms += 1000
        epoch = old.epoch
        with armed(fault(point, epoch, sleep, pick.randrange(1, POINTS[point] + 1))):
            running = pool.submit(old.run, rows)
            while not (sleep.begun.wait(0.01) or running.done()):
                pass
            # Upkeep goes on behind an epoch that is done.
            asleep = sleep.begun.is_set() or (running.done() and sleep.begun.wait(0.2))
            # Spark replays an epoch whose commit it has not written.
            done = running.done() and pick.random() < 0.5
            if done:
                running.result()
                truth.epoch([row for part in rows for row in part], old.now_ms)
            if not asleep:
                sleep.over.set()
            new = MiniCluster(flow, str(store), hosts=pick.choice([1, 2]))
            made.append(new)
            new.epoch, new.now_ms = epoch + done, old.now_ms
            after = Trial(name, new, truth)
            if not done:
                new.now_ms -= 1000
                after.epoch(rows)
            for _ in range(pick.randrange(0, 5)):
                after.take(Turn(pick.randrange(1000)))
            sleep.over.set()
            with suppress(CheckpointError):
                running.result(_PATIENCE_S)
            for _ in range(pick.randrange(0, 3)):
                after.take(Turn(pick.randrange(1000)))
            with pytest.raises(CheckpointError, match="has started a flow on"):
                old.run(rows)
            old.await_upkeep()
        made.remove(old)
        old.close()
        for _ in range(pick.randrange(1, 5)):
            after.take(Turn(pick.randrange(1000)))
        after.check()
        return asleep
    finally:
        sleep.over.set()
        for cluster in made:
            cluster.close()
        pool.shutdown()


def test_an_older_driver_that_wakes_up_harms_nothing(tmp_path: Path) -> None:
    asleep = [trial(seed, tmp_path / str(seed)) for seed in range(20)]
    assert sum(asleep) > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_older_driver_that_wakes_up_harms_nothing_in_many_schedules(tmp_path: Path) -> None:
    for seed in range(1000, 1300):
        trial(seed, tmp_path / str(seed))
