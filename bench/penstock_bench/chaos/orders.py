"""Orders, which deliver faults to processes.

An order is a file in the folder of a fault point. Every process of the flow has an `Ordered` action at each
fault point, which looks into that folder. Usually it is empty. The first process that passes takes the order
by renaming it, and notes that the fault happened; only these faults count. If the order has a duration, all
other processes that pass during that time obey it too.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.faults import FAULT_POINTS, Action, InjectedFault

CLOCK = "driver.clock"
POINTS = (*FAULT_POINTS, "burst.work")
"""Fault points that accept orders."""
_SLOW_S = 0.25
"""Seconds by which the order "slow" delays a process."""
_WAITS, _LASTS = ".order", ".taken"


@dataclass(frozen=True)
class FaultOrder:
    """A fault to inject at a fault point."""

    fault: int
    """Number of the fault in its schedule."""
    do: str
    """Action: raise, kill, slow, or the name of a system error such as ENOSPC."""
    for_s: float = 0.0
    """Seconds, from the first process that passes, during which all that pass are affected; 0 for only the
    first."""


@dataclass(frozen=True)
class OrderBook:
    """The folder of a run's orders, and the list of faults that happened."""

    folder: str

    def open(self) -> None:
        for point in POINTS:
            Path(self.folder, point).mkdir(parents=True)

    def put(self, point: str, order: FaultOrder) -> None:
        _write(Path(self.folder, point, f"{order.fault}{_WAITS}"), asdict(order))

    def withdraw(self, point: str, fault: int) -> None:
        """Remove an order, whether it was taken or not."""
        for suffix in (_WAITS, _LASTS):
            Path(self.folder, point, f"{fault}{suffix}").unlink(missing_ok=True)

    def set_clock(self, fault: int, ahead_s: float) -> None:
        """Set the driver's clock ahead of the real time by `ahead_s` seconds."""
        _write(Path(self.folder, CLOCK), {"fault": fault, "ahead_s": ahead_s})

    def note(self, fault: int, at_s: float | None = None, **facts: Any) -> None:
        """Record that a fault happened, now or at `at_s`. A repeated record is ignored."""
        line = {"fault": fault, "at_s": at_s or time.time(), "pid": os.getpid(), **facts}
        with open(f"{self.folder}/fired.jsonl", "ab") as file:
            file.write(json.dumps(line, default=str).encode() + b"\n")

    def happened(self) -> dict[int, dict[str, Any]]:
        """The faults that have happened: number -> the time and process of its first occurrence."""
        first: dict[int, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in Path(self.folder, "fired.jsonl").read_bytes().splitlines():
                facts = json.loads(line)
                first.setdefault(facts["fault"], facts)
        return first


@dataclass(frozen=True)
class Ordered:
    """The action at a fault point that obeys orders. A plain value, so that settings can carry it."""

    book: OrderBook
    point: str
    then: Action | None = None
    """Another action to run at this point afterwards."""

    def __call__(self, facts: Mapping[str, Any]) -> float | None:
        with suppress(FileNotFoundError):  # the run is over, or another process took the order
            for name in os.listdir(f"{self.book.folder}/{self.point}"):
                self._look_at(Path(self.book.folder, self.point, name), facts)
        return None if self.then is None else self.then(facts)

    def _look_at(self, file: Path, facts: Mapping[str, Any]) -> None:
        known = FAULT_POINTS.get(self.point)
        where = {name: facts[name] for name in known.where} if known else {}
        if file.suffix == _WAITS:
            order = FaultOrder(**json.loads(file.read_bytes()))
            taken = file.with_suffix(_LASTS)
            file.rename(taken)
            os.utime(taken, (time.time(),) * 2)
            if not order.for_s:
                taken.unlink()
            self.book.note(order.fault, **where)
            self._obey(order, where)
        elif file.suffix == _LASTS:
            order = FaultOrder(**json.loads(file.read_bytes()))
            if time.time() < file.stat().st_mtime + order.for_s:
                self._obey(order, where)

    def _obey(self, order: FaultOrder, where: Mapping[str, Any]) -> None:
        if order.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.do == "raise":
            raise InjectedFault(self.point, where)
        if order.do == "slow":
            time.sleep(_SLOW_S)
        else:
            number = getattr(errno, order.do)
            raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class OrderedClock:
    """The action at the driver's clock: returns the seconds by which it is to be ahead."""

    book: OrderBook

    def __call__(self, facts: Mapping[str, Any]) -> float:
        file = Path(self.book.folder, CLOCK)
        try:
            clock = json.loads(file.read_bytes())
        except FileNotFoundError:
            return 0.0
        with suppress(FileExistsError, FileNotFoundError):
            file.with_name(f"clock-{clock['fault']}").touch(exist_ok=False)
            self.book.note(clock["fault"])
        return float(clock["ahead_s"])


def _write(file: Path, facts: dict[str, Any]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(facts))
    new.rename(file)
