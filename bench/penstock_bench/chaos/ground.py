"""What a run stands on: this machine alone, or a cluster with Kafka in front and an object store behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import psutil

from penstock.state.store.files import Files
from penstock_bench.chaos.arena import Bearings, ChaosArena
from penstock_bench.chaos.kinds import Need, Trouble, Whom


class Ground(Protocol):
    """What a run stands on."""

    offers: tuple[Need, ...]
    """What kinds of faults may need, and find here."""

    @property
    def bearings(self) -> Bearings: ...

    def log(self) -> Files:
        """The folder of Spark's log, past all that makes trouble."""

    def processes(self, whom: Whom) -> list[list[psutil.Process]]:
        """All that are called so, each with the processes that share its fate; hosts and functions are
        the driver's."""

    def revive(self, whom: Whom) -> None:
        """Start those of them again that are dead and that nobody else starts."""

    def trouble(self, what: Trouble, chance: random.Random) -> Callable[[], object]:
        """Begin trouble; returns what ends it."""

    def load(self) -> None:
        """Let rows come, once the driver is up."""


class LocalGround:
    """This machine, its disk, and a session of Spark's that is the driver's own."""

    offers: tuple[Need, ...] = ("burst", "process")

    def __init__(self, arena: ChaosArena) -> None:
        self.bearings = Bearings(str(arena.root / "checkpoint"))

    def log(self) -> Files:
        return Files(self.bearings.checkpoint)

    def processes(self, whom: Whom) -> list[list[psutil.Process]]:
        return []

    def revive(self, whom: Whom) -> None:
        """Whatever dies here, Spark or the supervisor starts again."""

    def trouble(self, what: Trouble, chance: random.Random) -> Callable[[], object]:
        raise AssertionError(f"there is no {what} on one machine")

    def load(self) -> None:
        """Rows are made up by the source, from when the query is up."""
