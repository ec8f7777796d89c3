"""Stories of live flows: rows, requests, deaths, silence and failing stores, chosen by a seed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.faults import Fault, armed
from tests.offload.in_process import Helped
from tests.trials.ledger import SLOTS
from tests.trials.live_cluster import LiveCluster
from tests.trials.live_trial import SubjectTrial, subject_trial
from tests.trials.trial import MEMORY, MIGRATIONS

HOST_POINTS = (
    "host.assign", "host.round", "host.seal", "host.sealed", "host.fetch", "host.fetched",
    "host.serve", "host.install", "host.trickle", "host.compact",
)  # fmt: skip
COURIER_POINTS = (
    "courier.polled", "courier.sent", "courier.message", "courier.messaged", "courier.flushed",
    "courier.release", "courier.released",
)  # fmt: skip
DRIVER_POINTS = (
    "driver.assign", "driver.begin", "driver.message", "driver.told", "driver.sealed",
    "driver.committed", "driver.layout", "driver.clean",
)  # fmt: skip
STORE_POINTS = ("store.write", "store.read")
POINTS = (*HOST_POINTS, *COURIER_POINTS, *DRIVER_POINTS, *STORE_POINTS)
"""All fault points that a live flow passes."""
BURST_POINTS = ("courier.offload", "courier.offloaded")
"""Fault points that a live flow passes when it has burst workers."""
UPKEEP = ("driver.layout", "driver.clean")
RARE = ("host.fetch", "host.fetched", "host.serve", "host.install", "host.trickle", "host.compact")
"""Fault points that are passed when slots move, or rarely."""


def mishap(on: LiveCluster, point: str, hit: int) -> Fault:
    """A fault for the `hit`-th passing of a point: the process dies, or its store fails."""
    does: Any = "raise"
    if point in HOST_POINTS:
        does = on.kill_host
    elif point in UPKEEP:
        does = on.kill_driver
    elif point in STORE_POINTS:
        does = OSError
    return Fault(point, do=does, hits=(hit,))


def random_mishap(on: LiveCluster, pick: random.Random, points: tuple[str, ...] = POINTS) -> Fault:
    point = pick.choice(points)
    often = (
        40
        if point in (*COURIER_POINTS, *BURST_POINTS, *STORE_POINTS)
        else 3
        if point in RARE
        else 8
    )
    return mishap(on, point, pick.randint(1, often))


def random_options(pick: random.Random) -> dict[str, Any]:
    return {
        "hosts": pick.randint(1, 3),
        "couriers": pick.randint(1, 2),
        "migration": pick.choice(MIGRATIONS),
        "memory_limit": pick.choice((None, *MEMORY)),
        "transactional": pick.random() < 0.5,
    }


def random_request(trial: SubjectTrial, pick: random.Random) -> None:
    """Do something that a user or the environment may do while rows flow."""
    step, to = pick.randrange(3), pick.randrange(4)
    slots = tuple(pick.sample(range(SLOTS), pick.randint(1, SLOTS)))
    what = pick.choice(
        (
            *("move", "move", "back and forth", "scale", "couriers", "migration", "leave"),
            *("nothing", "split", "scatter", "unite"),
        )
    )
    if what == "move":
        trial.move(step, slots, to)
    elif what == "back and forth":
        trial.move(step, slots, to)
        trial.give(1)
        trial.move(step, slots, to + 1)
    elif what in ("split", "scatter", "unite"):
        trial.resplit(what, step, slots[:2], to)
    elif what == "scale":
        trial.scale(step, pick.randint(1, 4))
    elif what == "couriers":
        trial.have_couriers(pick.randint(1, 3))
    elif what == "leave":
        trial.leave(to)
    elif what == "migration":
        trial.migrate_by(pick.choice(MIGRATIONS))


def tell(
    name: str, seed: int, store: Path, mishaps: int, turns: int = 6, helped: Helped | None = None
) -> Counter[str]:
    """Run a story of a flow; return the number of faults at each point."""
    pick, points = random.Random(seed), POINTS if helped is None else (*POINTS, *BURST_POINTS * 4)
    with subject_trial(name, store, seed, helped=helped, **random_options(pick)) as trial:
        on = trial.cluster
        with armed(*(random_mishap(on, pick, points) for _ in range(mishaps))) as faults:
            for _ in range(turns):
                trial.give(batches=pick.randint(1, 4), rows=pick.choice((5, 20)))
                random_request(trial, pick)
                if pick.random() < 0.5:
                    on.pass_epochs(1)
            trial.check()
        return Counter(passed.point for passed in faults.fired)
