"""The environment of a run: this machine alone, or a cluster with Kafka and an object store."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import psutil

from penstock.state.store.files import Files
from penstock_bench.chaos.arena import Bearings, ChaosArena
from penstock_bench.chaos.kinds import Need, Trouble, Whom


class Ground(Protocol):
    """The environment of a run."""

    offers: tuple[Need, ...]
    """Needs of fault kinds that this environment meets."""

    @property
    def bearings(self) -> Bearings: ...

    def log(self) -> Files:
        """The folder of Spark's log, accessed without injected faults."""

    def processes(self, whom: Whom) -> list[list[psutil.Process]]:
        """All targets of this kind, each with the processes that fail with it. Not for hosts and functions,
        which the driver owns."""

    def revive(self, whom: Whom) -> None:
        """Restart the dead targets of this kind, unless something else restarts them."""

    def trouble(self, what: Trouble, chance: random.Random) -> Callable[[], object]:
        """Begin an environment fault; returns a function that ends it."""

    def load(self) -> None:
        """Start sending rows, once the driver is up."""


class LocalGround:
    """This machine, its disk, and the driver's own Spark session."""

    offers: tuple[Need, ...] = ("burst", "process")

    def __init__(self, arena: ChaosArena) -> None:
        self.bearings = Bearings(str(arena.root / "checkpoint"))

    def log(self) -> Files:
        return Files(self.bearings.checkpoint)

    def processes(self, whom: Whom) -> list[list[psutil.Process]]:
        return []

    def revive(self, whom: Whom) -> None:
        """Do nothing: Spark or the supervisor restarts everything here."""

    def trouble(self, what: Trouble, chance: random.Random) -> Callable[[], object]:
        raise AssertionError(f"fault {what!r} needs a cluster")

    def load(self) -> None:
        """Do nothing: the source generates rows as soon as the query is up."""
