"""Two drivers on one checkpoint: the older one stops anywhere in its epoch, and resumes anywhere in the
newer one's epoch. State is the newer one's, and the older one ends with an error."""

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
"""Points at which the older driver may stop, and how often it passes them in an epoch or its upkeep. The
last two come after its check of the owner: before it writes a manifest, and before it removes deltas."""
_PATIENCE_S = 20.0


class Sleep:
    """Holds the first process at a point until it is released."""

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
    """Run one schedule; return whether the older driver stopped in it."""
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
            # Upkeep runs after an epoch is done.
            asleep = sleep.begun.is_set() or (running.done() and sleep.begun.wait(0.2))
            # Spark replays an epoch whose commit is missing.
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
