"""Kinds of faults: how often each occurs, what it needs, and how it acts on a run.

A kind is a small value in `KINDS`; to add one, add an entry. It acts through a `Site`: extend that if the
fault needs a new kind of action.
"""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from penstock.faults import FAULT_POINTS

Need = Literal["burst", "process", "cluster", "network"]
"""Needs of a fault: a burst of rows in progress; a driver in a process of its own; a cluster, a broker and an
object store; a network between them that can fail."""
Whom = Literal[
    "host", "functions", "executor", "worker", "machine", "master", "broker", "object store"
]
"""Targets of signals. A machine is a worker with its child processes."""
Trouble = Literal[
    "store slow", "store failing", "store throttled", "store resets", "network cut", "network slow"
]
"""Temporary faults of a run's environment."""


@dataclass(frozen=True)
class DueFault:
    """One fault of a schedule."""

    number: int
    at_s: float
    """Seconds after the start of the load."""
    kind: str
    pick: int
    """Seed of its random choices, such as which host and how long."""


class Site(Protocol):
    """The actions that faults consist of. None of them blocks."""

    def order(self, due: DueFault, point: str, do: str, for_s: float = 0.0) -> None:
        """Inject a fault at a fault point: for the first process that passes, or for all during `for_s`
        seconds."""

    def signal(
        self, due: DueFault, whom: Whom, how: signal.Signals, then_s: float | None = None
    ) -> None:
        """Send a signal to a process. After `then_s` seconds, if given, resume it if it was stopped, or
        restart it if nothing else does."""

    def trouble(self, due: DueFault, what: Trouble, for_s: float) -> None:
        """Inject a fault into the environment for `for_s` seconds."""

    def kill_driver(self, due: DueFault) -> None: ...

    def set_clock(self, due: DueFault, ahead_s: float) -> None: ...

    def move(self, due: DueFault) -> None:
        """Make the query move slots or scale a step. Not a fault itself, but faults happen during it."""


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of fault."""

    name: str
    group: str = ""
    """Name of its group. Kinds of a group are reported together and share a weight."""
    weight: float = 0.0
    """Relative frequency; 0 means rare, see `schedule`."""
    needs: frozenset[Need] = frozenset()
    moves: bool = False
    """Whether it also moves slots, because its fault point is passed only then."""

    @abstractmethod
    def begin(self, site: Site, due: DueFault) -> None:
        """Inject the fault."""


@dataclass(frozen=True)
class AtPoint(Kind):
    """A process is killed at a fault point, or gets an error there."""

    point: str = ""
    do: str = "raise"

    def begin(self, site: Site, due: DueFault) -> None:
        site.order(due, self.point, self.do)
        if self.moves:
            site.move(due)


@dataclass(frozen=True)
class ForAWhile(Kind):
    """For 0.2 to 1 s, all processes that pass a fault point get an error or a delay."""

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
    """Range of seconds after which it is resumed or restarted; None for never."""

    def begin(self, site: Site, due: DueFault) -> None:
        span = self.then_s
        then_s = span and random.Random(due.pick).uniform(*span)
        site.signal(due, self.whom, self.how, then_s)


@dataclass(frozen=True)
class Surrounded(Kind):
    """The environment of a run has a fault for a while."""

    what: Trouble = "store slow"
    for_s: tuple[float, float] = (0.3, 2.0)
    """Range of its length in seconds."""

    def begin(self, site: Site, due: DueFault) -> None:
        site.trouble(due, self.what, random.Random(due.pick).uniform(*self.for_s))


@dataclass(frozen=True)
class DriverKilled(Kind):
    """The driver's process is killed."""

    def begin(self, site: Site, due: DueFault) -> None:
        site.kill_driver(due)


@dataclass(frozen=True)
class ClockStep(Kind):
    """The driver's clock jumps forward or back."""

    most_s: float = 600.0
    """Longest jump in seconds."""

    def begin(self, site: Site, due: DueFault) -> None:
        site.set_clock(due, random.Random(due.pick).uniform(-self.most_s, self.most_s))


_MOVING = (
    "host.assign",
    "host.began",
    "host.fetch",
    "host.fetched",
    "host.serve",
    "host.install",
    "host.trickle",
)
"""Fault points that are passed only when slots move."""
_NO_CALL = ("host.trickle", "host.install", "sink.merge")
"""Fault points passed by background threads, where no call can be aborted: they raise an I/O error."""
_BURSTING = ("courier.offload", "courier.offloaded")
_UPKEEP = ("driver.layout", "driver.clean", "sink.merge")
"""Fault points of the driver at which an error does not fail the query."""


def _at_points() -> list[Kind]:
    """For every fault point but the store's: an error there, and a kill of its process there."""
    kinds: list[Kind] = []
    for point in FAULT_POINTS:
        who = point.split(".")[0]
        needs: frozenset[Need] = frozenset({"burst"} if point in _BURSTING else ())
        raises = AtPoint(f"{point} raises", needs=needs, point=point, moves=point in _MOVING)
        if point in _NO_CALL:
            raises = replace(raises, do="EIO")
        kills = replace(raises, name=f"{point} killed", do="kill")
        if who in ("courier", "host"):
            kinds += [raises, kills]
        elif who in ("driver", "sink"):
            kinds += [raises, replace(kills, needs=frozenset({"process"}))]
    return kinds


def _group(group: str, weight: float, *kinds: Kind) -> list[Kind]:
    """These kinds as a group that shares a weight."""
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
            # Shorter than the silence after which a host is given up; longer; for good.
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
    """Faults of a cluster, its broker and its object store."""
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
