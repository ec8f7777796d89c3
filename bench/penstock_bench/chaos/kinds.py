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

Need = Literal["burst", "process"]
"""A burst of rows under way; a driver in a process of its own."""


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

    def signal_host(self, due: DueFault, how: signal.Signals, then_s: float | None = None) -> None:
        """Send a host a signal; one that is stopped goes on after so many seconds, if any."""

    def signal_functions(self, due: DueFault, how: signal.Signals) -> None:
        """Send the service of the functions a signal."""

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
    """A host gets a signal."""

    how: signal.Signals = signal.SIGKILL
    then_s: tuple[float, float] | None = None
    """A stopped host goes on after as many seconds, from and to; None: never."""

    def begin(self, site: Site, due: DueFault) -> None:
        span = self.then_s
        site.signal_host(due, self.how, span and random.Random(due.pick).uniform(*span))


@dataclass(frozen=True)
class FunctionsSignalled(Kind):
    """The service of the functions gets a signal, and with it all of them."""

    how: signal.Signals = signal.SIGKILL

    def begin(self, site: Site, due: DueFault) -> None:
        site.signal_functions(due, self.how)


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
            FunctionsSignalled("all functions killed", needs=burst),
        ),
        *_group("clock", 0.08, ClockStep("clock step")),
        *_group("upkeep fails", 0.03, *upkeep),
        *_group("query fails", 0.01, *[kind for kind in fails if kind not in upkeep]),
        *_group("driver killed", 0.0, DriverKilled("driver killed", needs=frozenset({"process"}))),
        *_group("driver killed", 0.0, *of("driver", "killed"), *of("sink", "killed")),
    ]


KINDS = {kind.name: kind for kind in _kinds()}
