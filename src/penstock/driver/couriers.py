"""The couriers of a live flow: started, scaled, sent messages, halted."""

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
"""Milliseconds that a new run waits for a lost courier before others read its partitions. Spark restarts a
task within a fraction of that."""
_GUIDE_MS = 500
"""Timeout of a `guide` call, in milliseconds."""


class CourierCrew(TaskCrew[str, int]):
    """All couriers of a started flow, named "courier/0" and so on. No name is used twice."""

    kind = "courier"
    inheritance = "Its partitions go to other couriers"

    names: tuple[str, ...] = ()
    """Names of all couriers that the flow should have."""
    _run: Mapping[str, HostRecord] = {}
    """Couriers of the current run, by name."""
    _served: frozenset[str] = frozenset()
    """Couriers that have been in a run. A lost one of them comes back soon; a new one may wait for a core."""
    _used_names: int = 0
    """Number of names that were used so far."""
    _replaced: Mapping[str, str] = {}
    """Couriers whose executors are being decommissioned -> their replacements."""
    _guides: Guides | None = None
    """Last instructions that were sent to couriers."""

    def start(self, count: int) -> None:
        """Scale to this number of couriers. New ones join a run once they are up. Surplus ones leave with
        the current run."""
        fresh = range(self._used_names, self._used_names + max(0, count - len(self.names)))
        self._used_names = fresh.stop
        added = tuple(f"courier/{number}" for number in fresh)
        self.names = (*self.names[:count], *added)
        for number, name in zip(fresh, added, strict=True):
            self.add(name, number)
        self._retire()

    def _retire(self) -> None:
        """End surplus couriers that are in no run, in the background."""
        for name in [n for n in self._members if n not in self.names and n not in self._run]:
            del self._members[name]
            self._registry.recovery.dismissed(name)
            self._calls.submit(self._end, name)

    def replace_leaving(self) -> None:
        """Start a replacement for each courier whose executor is being decommissioned. Once that is up, the
        old courier leaves with the current run."""
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
        """The couriers of the next run: all of them, or those that are up after a short wait."""
        self.revive(self.names)
        if not self.ready(self.names):
            self.wait_for(self.names, 1)
        self.wait_shortly([name for name in self.names if name in self._served], BACK_MS)
        return self.ready(self.names)

    def begin(self, orders: Mapping[str, LiveOrder]) -> None:
        """Start a run on these couriers, each with its order."""
        self._run = {name: self._record(name) for name in orders}
        self._served |= orders.keys()
        self._each(list(orders), lambda name: self._tell(name, "begin", order=orders[name]))
        self._retire()
        if self._guides is not None:
            self.guide(next(iter(orders.values())).run, self._guides)

    def tell(self, run: int, message: Message) -> None:
        """Send the next control message to all couriers of the run."""
        self._each(
            list(self._run), lambda name: self._tell(name, "message", run=run, message=message)
        )

    def guide(self, run: int, guides: Guides) -> None:
        """Send instructions to all couriers of this run and of later ones. They are hints: results do not
        depend on which couriers receive them, or when."""

        def send(name: str) -> None:
            with suppress(PenstockError):  # `pulse` finds a courier that is gone
                self._call(couriers[name], "guide", _GUIDE_MS, run=run, guides=guides)

        self._guides, couriers = guides, self._run
        self._each(list(couriers), send)

    def release(self, run: int, epoch: int) -> None:
        """Notify all couriers of the run that an epoch is durable. A courier that cannot be reached is given
        up, which ends the run. The epoch stays durable, and the next run delivers the rest of it."""

        def notify(name: str) -> None:
            with suppress(HostLostError):
                self._tell(name, "durable", run=run, epoch=epoch)

        self._each(list(self._run), notify)

    def halt(self, run: int) -> None:
        """End the run on all couriers that can be reached. A courier whose process is gone is given up, so
        that the next run does not count on it."""

        def end(name: str) -> None:
            try:
                self._call(known[name], "halt", AT_ONCE_MS, run=run)
            except PenstockError:
                self._ping(known[name])

        known, self._run = self._run, {}
        self._each([n for n, record in known.items() if self._registry.host(n) == record], end)

    def pulse(self, names: Iterable[str]) -> None:
        super().pulse({*names, *self._run})  # a surplus courier is needed until its run ends

    def pids(self) -> dict[str, int]:
        """Courier -> process id, for couriers that are up."""
        records = (self._registry.host(name) for name in self.names)
        return {record.host: record.pid for record in records if record is not None}

    @property
    def missing(self) -> bool:
        """Whether a courier of the run was lost, even if it is back as another process."""
        return any(self._registry.host(name) != record for name, record in self._run.items())

    @property
    def idle(self) -> bool:
        """Whether a courier is up that is not in the run."""
        return not self._run.keys() >= set(self.ready(self.names))

    @property
    def surplus(self) -> bool:
        """Whether the run has a courier that should leave."""
        return not self._run.keys() <= set(self.names)

    def _record(self, name: str) -> HostRecord:
        record = self._registry.host(name)
        if record is None:
            raise HostLostError(f"{name} is lost")
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
