"""The couriers of a live flow: more and fewer of them, begun, told what the driver says, halted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from penstock.driver.crew import AT_ONCE_MS, TaskCrew
from penstock.driver.registry import HostRecord
from penstock.errors import HostLostError, PenstockError
from penstock.wire.live import Guides, LiveOrder, Message

_log = logging.getLogger("penstock.hosts")

BACK_MS = 1_000
"""Milliseconds that a new run waits for a courier that was lost; then others read its partitions. Spark tries
a task again within a fraction of that."""
_GUIDE_MS = 500
"""Milliseconds to wait for a courier that is told what to do with rows."""


class CourierCrew(TaskCrew[str, int]):
    """All couriers of a started flow, named "courier/0" and so on. No name is given twice."""

    kind = "courier"
    inheritance = "Its partitions go to others"

    names: tuple[str, ...] = ()
    """All couriers that there should be."""
    _run: Mapping[str, HostRecord] = {}
    """Those of the run under way."""
    _served: frozenset[str] = frozenset()
    """Couriers that have been in a run: one that is lost is back soon, a new one may wait for a core."""
    _given: int = 0
    """Names that were given."""
    _replaced: Mapping[str, str] = {}
    """Couriers that will be gone soon, and those that take their places."""
    _guides: Guides | None = None
    """What couriers were last told to do with rows."""

    def start(self, count: int) -> None:
        """Have so many couriers. More are started, and are in a run when they have come up; those that are
        too many leave with the run under way."""
        fresh = range(self._given, self._given + max(0, count - len(self.names)))
        self._given = fresh.stop
        added = tuple(f"courier/{number}" for number in fresh)
        self.names = (*self.names[:count], *added)
        for number, name in zip(fresh, added, strict=True):
            self.add(name, number)
        self._retire()

    def _retire(self) -> None:
        """End couriers that are too many, and in no run, without waiting for that."""
        for name in [n for n in self._members if n not in self.names and n not in self._run]:
            del self._members[name]
            self._registry.recovery.dismissed(name)
            self._calls.submit(self._end, name)

    def replace_leaving(self) -> None:
        """Have another courier for each whose executor is being decommissioned; when that is up the other
        one leaves, with the run under way."""
        for name in self.leaving(name for name in self.names if name not in self._replaced):
            self.start(len(self.names) + 1)
            self._replaced = {**self._replaced, name: self.names[-1]}
            _log.warning(
                "The executor of %s is being decommissioned: %s takes its place.",
                name,
                self.names[-1],
                extra={"courier": name, "by": self.names[-1]},
            )
        up = {old for old, new in self._replaced.items() if self.ready([new])}
        if up:
            self.names = tuple(name for name in self.names if name not in up)
            self._replaced = {o: n for o, n in self._replaced.items() if o not in up}
            self._retire()

    def muster(self) -> list[str]:
        """The couriers of the next run: all, or those that are there when the others were waited for."""
        self.revive(self.names)
        if not self.ready(self.names):
            self.wait_for(self.names, 1)
        self.wait_shortly([name for name in self.names if name in self._served], BACK_MS)
        return self.ready(self.names)

    def begin(self, orders: Mapping[str, LiveOrder]) -> None:
        """Let these couriers begin a run, each with its order."""
        self._run = {name: self._record(name) for name in orders}
        self._served |= orders.keys()
        self._each(list(orders), lambda name: self._tell(name, "begin", order=orders[name]))
        self._retire()
        if self._guides is not None:
            self.guide(next(iter(orders.values())).run, self._guides)

    def tell(self, run: int, message: Message) -> None:
        """Hand all couriers of the run a control message, the next one."""
        self._each(
            list(self._run), lambda name: self._tell(name, "message", run=run, message=message)
        )

    def guide(self, run: int, guides: Guides) -> None:
        """Tell all couriers of the run what to do with rows, until they are told otherwise; those that
        begin a later run are told, too. Nothing depends on who hears of it, or when."""

        def one(name: str) -> None:
            with suppress(PenstockError):  # one that is gone is found by its pulse
                self._call(couriers[name], "guide", _GUIDE_MS, run=run, guides=guides)

        self._guides, couriers = guides, self._run
        self._each(list(couriers), one)

    def release(self, run: int, epoch: int) -> None:
        """Let all couriers of the run know that an epoch is durable. One that cannot be told is given up,
        which breaks the run off: the epoch stays, and the next run delivers what this one has not."""

        def one(name: str) -> None:
            with suppress(HostLostError):
                self._tell(name, "durable", run=run, epoch=epoch)

        self._each(list(self._run), one)

    def halt(self, run: int) -> None:
        """End the run in all couriers that can be reached; whose process is gone is given up, so that the
        next run does not begin with it."""

        def one(name: str) -> None:
            try:
                self._call(known[name], "halt", AT_ONCE_MS, run=run)
            except PenstockError:
                self._ping(known[name])

        known, self._run = self._run, {}
        self._each([n for n, record in known.items() if self._registry.host(n) == record], one)

    def pulse(self, names: Iterable[str]) -> None:
        super().pulse({*names, *self._run})  # one that is to leave must be there until it has left

    def pids(self) -> dict[str, int]:
        """Courier -> process id, of those that are up."""
        records = (self._registry.host(name) for name in self.names)
        return {record.host: record.pid for record in records if record is not None}

    @property
    def missing(self) -> bool:
        """Whether a courier of the run is gone, or there again as another incarnation."""
        return any(self._registry.host(name) != record for name, record in self._run.items())

    @property
    def idle(self) -> bool:
        """Whether a courier is there that the run does without."""
        return not self._run.keys() >= set(self.ready(self.names))

    @property
    def surplus(self) -> bool:
        """Whether the run has a courier that is to leave."""
        return not self._run.keys() <= set(self.names)

    def _record(self, name: str) -> HostRecord:
        record = self._registry.host(name)
        if record is None:
            raise HostLostError(f"courier {name} is gone")
        return record

    def _tell(self, name: str, action: str, within_ms: int | None = None, **arguments: Any) -> None:
        record = self._run[name]
        try:
            self._call(record, action, within_ms, **arguments)
        except HostLostError as failed:
            self._give_up(record, failed.message)
            raise

    def _needed(self, name: str) -> bool:
        return name in self._run
