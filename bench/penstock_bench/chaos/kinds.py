"""Kinds of faults: each says how often it comes, what it needs, and what it does to a run.

A kind is a small value in `KINDS`. One more, of executors, a broker or a network, is one more entry;
what it cannot do with the `Site` it gets, the site has to learn.
"""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from penstock.faults import FAULT_POINTS

Need = Literal["burst", "process", "cluster", "network"]
"""A burst of rows under way; a driver in a process of its own; a cluster, a broker and an object store; a
network between them."""
Whom = Literal[
    "host", "functions", "executor", "worker", "machine", "master", "broker", "object store"
]
"""Processes of a run; a machine is a worker with all that it has started."""
Trouble = Literal[
    "store slow", "store failing", "store throttled", "store resets", "network cut", "network slow"
]
"""What the surroundings of a run can have for a while."""


@dataclass(frozen=True)
class DueFault:
    """One fault of a schedule."""

    number: int
    at_s: float
    """Seconds after the load began."""
    kind: str
    pick: int
    """What is left to chance: which host, how long."""


class Site(Protocol):
    """What faults can be done to. Nothing here waits."""

    def order(self, due: DueFault, point: str, do: str, for_s: float = 0.0) -> None:
        """Have this happen at a fault point: to whoever passes first, or to all for some time."""

    def signal(
        self, due: DueFault, whom: Whom, how: signal.Signals, then_s: float | None = None
    ) -> None:
        """Send a process a signal. After so many seconds, if any, one that is stopped goes on, and one that
        nobody else starts again is started."""

    def trouble(self, due: DueFault, what: Trouble, for_s: float) -> None:
        """Let the surroundings have this trouble for a while."""

    def kill_driver(self, due: DueFault) -> None: ...

    def set_clock(self, due: DueFault, ahead_s: float) -> None: ...

    def move(self, due: DueFault) -> None:
        """Have the query move slots or scale a step. It is no fault, but faults fall into it."""


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of fault."""

    name: str
    group: str = ""
    """Kinds of one group are told together, and share a weight."""
    weight: float = 0.0
    """How often it comes, relative to others; 0: only once in many, see `schedule`."""
    needs: frozenset[Need] = frozenset()
    moves: bool = False
    """Slots change hands while it lies in wait: only then its place is passed."""

    @abstractmethod
    def begin(self, site: Site, due: DueFault) -> None:
        """Do it, or have it done."""


@dataclass(frozen=True)
class AtPoint(Kind):
    """A process dies at a fault point, or breaks off what it does there."""

    point: str = ""
    do: str = "raise"

    def begin(self, site: Site, due: DueFault) -> None:
        site.order(due, self.point, self.do)
        if self.moves:
            site.move(due)


@dataclass(frozen=True)
class ForAWhile(Kind):
    """All that pass a point have this trouble, for 0.2 to 1 s."""

    point: str = "store.write"
    do: str = "EIO"

    def begin(self, site: Site, due: DueFault) -> None:
        site.order(due, self.point, self.do, random.Random(due.pick).uniform(0.2, 1.0))


@dataclass(frozen=True)
class Signalled(Kind):
    """A process gets a signal."""

    whom: Whom = "host"
    how: signal.Signals = signal.SIGKILL
    then_s: tuple[float, float] | None = None
    """It goes on, or is started again, after as many seconds, from and to; None: never."""

    def begin(self, site: Site, due: DueFault) -> None:
        span = self.then_s
        then_s = span and random.Random(due.pick).uniform(*span)
        site.signal(due, self.whom, self.how, then_s)


@dataclass(frozen=True)
class Surrounded(Kind):
    """What is around a run has trouble."""

    what: Trouble = "store slow"
    for_s: tuple[float, float] = (0.3, 2.0)

    def begin(self, site: Site, due: DueFault) -> None:
        site.trouble(due, self.what, random.Random(due.pick).uniform(*self.for_s))


@dataclass(frozen=True)
class DriverKilled(Kind):
    """The driver's process is killed."""

    def begin(self, site: Site, due: DueFault) -> None:
        site.kill_driver(due)


@dataclass(frozen=True)
class ClockStep(Kind):
    """The driver's clock goes forth or back by up to so many seconds."""

    most_s: float = 600.0

    def begin(self, site: Site, due: DueFault) -> None:
        site.set_clock(due, random.Random(due.pick).uniform(-self.most_s, self.most_s))


_MOVING = (
    "host.assign",
    "host.fetch",
    "host.fetched",
    "host.serve",
    "host.install",
    "host.trickle",
)
"""Points that are passed when slots change hands."""
_NO_CALL = ("host.trickle", "host.install", "sink.merge")
"""Passed by a thread of a process itself, where no call could be broken off: it has an error there."""
_BURSTING = ("courier.offload", "courier.offloaded")
_UPKEEP = ("driver.layout", "driver.clean", "sink.merge")
"""Points of the driver at which it does not fail as a whole."""


def _at_points() -> list[Kind]:
    """Every fault point but the store's: its process breaks off there, or is killed."""
    found: list[Kind] = []
    for point in FAULT_POINTS:
        who = point.split(".")[0]
        needs: frozenset[Need] = frozenset({"burst"} if point in _BURSTING else ())
        raises = AtPoint(f"{point} raises", needs=needs, point=point, moves=point in _MOVING)
        if point in _NO_CALL:
            raises = replace(raises, do="EIO")
        kills = replace(raises, name=f"{point} killed", do="kill")
        if who in ("courier", "host"):
            found += [raises, kills]
        elif who in ("driver", "sink"):
            found += [raises, replace(kills, needs=frozenset({"process"}))]
    return found


def _group(group: str, weight: float, *kinds: Kind) -> list[Kind]:
    """Kinds that share a weight."""
    return [replace(kind, group=group, weight=weight / len(kinds)) for kind in kinds]


def _kinds() -> list[Kind]:
    points = _at_points()
    burst: frozenset[Need] = frozenset({"burst"})

    def of(who: str, what: str) -> list[Kind]:
        return [k for k in points if k.name.startswith(who) and k.name.endswith(what)]

    fails = [*of("driver", "raises"), *of("sink", "raises")]
    upkeep = [kind for kind in fails if kind.name.split()[0] in _UPKEEP]
    stopped = signal.SIGSTOP
    return [
        *_group("courier fails", 0.22, *of("courier", "raises")),
        *_group("courier killed", 0.10, *of("courier", "killed")),
        *_group("call to a host breaks", 0.10, *of("host", "raises")),
        *_group("host killed at a point", 0.12, *of("host", "killed")),
        *_group("host killed", 0.05, Signalled("host killed")),
        *_group(
            "host stopped",
            0.06,
            # Less than the silence after which it is given up; more; for ever.
            Signalled("host stopped shortly", how=stopped, then_s=(0.2, 1.0)),
            Signalled("host stopped and back", how=stopped, then_s=(2.5, 5.0)),
            Signalled("host stopped for good", how=stopped),
        ),
        *_group(
            "store",
            0.16,
            ForAWhile("store slow", do="slow"),
            ForAWhile("store failing", do="EIO"),
            ForAWhile("store full", do="ENOSPC"),
            ForAWhile("store read slow", point="store.read", do="slow"),
            ForAWhile("store read failing", point="store.read", do="EIO"),
        ),
        *_group(
            "functions",
            0.30,  # bursts are a small part of the time
            AtPoint("function killed", needs=burst, point="burst.work", do="kill"),
            AtPoint("function fails", needs=burst, point="burst.work", do="raise"),
            ForAWhile("functions slow", needs=burst, point="burst.work", do="slow"),
            Signalled("all functions killed", needs=burst, whom="functions"),
        ),
        *_group("clock", 0.08, ClockStep("clock step")),
        *_group("upkeep fails", 0.03, *upkeep),
        *_group("query fails", 0.01, *[kind for kind in fails if kind not in upkeep]),
        *_group("driver killed", 0.0, DriverKilled("driver killed", needs=frozenset({"process"}))),
        *_group("driver killed", 0.0, *of("driver", "killed"), *of("sink", "killed")),
        *_of_clusters(),
    ]


def _of_clusters() -> list[Kind]:
    """What fails in a cluster, with a broker in front and an object store behind."""
    stopped, terminated = signal.SIGSTOP, signal.SIGTERM
    network: frozenset[Need] = frozenset({"network"})
    kinds = [
        *_group(
            "executor lost",
            0.05,
            Signalled("executor killed", whom="executor"),
            Signalled("executor terminated", whom="executor", how=terminated),
            Signalled("executor stopped shortly", whom="executor", how=stopped, then_s=(0.2, 1.0)),
            Signalled("executor stopped", whom="executor", how=stopped, then_s=(2.5, 5.0)),
        ),
        *_group(
            "worker lost",
            0.03,
            Signalled("worker killed", whom="worker", then_s=(1.0, 3.0)),
            Signalled("worker terminated", whom="worker", how=terminated, then_s=(1.0, 3.0)),
            Signalled("machine killed", whom="machine", then_s=(1.0, 3.0)),
            Signalled("machine stopped shortly", whom="machine", how=stopped, then_s=(0.3, 1.0)),
            Signalled("machine stopped", whom="machine", how=stopped, then_s=(2.5, 5.0)),
        ),
        *_group("master lost", 0.01, Signalled("master killed", whom="master", then_s=(0.5, 2.0))),
        *_group(
            "broker lost",
            0.02,
            Signalled("broker killed", whom="broker", then_s=(0.1, 0.5)),
            Signalled("broker stopped", whom="broker", how=stopped, then_s=(0.2, 2.0)),
        ),
        *_group(
            "object store",
            0.15,
            Surrounded("object store slow", what="store slow"),
            Surrounded("object store failing", what="store failing"),
            Surrounded("object store throttled", what="store throttled"),
            Surrounded("object store resets", what="store resets"),
            Signalled("object store killed", whom="object store", then_s=(0.1, 0.5)),
        ),
        *_group(
            "network",
            0.08,
            Surrounded("network cut", needs=network, what="network cut"),
            Surrounded("network cut for long", needs=network, what="network cut", for_s=(2.0, 5.0)),
            Surrounded("network slow", needs=network, what="network slow"),
        ),
    ]
    return [replace(kind, needs=kind.needs | {"cluster"}) for kind in kinds]


KINDS = {kind.name: kind for kind in _kinds()}
