"""Orders: how a fault reaches the process that shall have it.

An order is a file in the folder of a fault point. Every process of the flow has an `Ordered` at each
point, which looks into that folder when it passes: nearly always it is empty. The first one that
passes takes the order by a rename, and notes that it happened: only what happened counts as a fault.
An order that lasts is then obeyed by everybody who passes, for as long as it says.
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
"""Points that orders can be put at."""
_SLOW_S = 0.25
_WAITS, _LASTS = ".order", ".taken"


@dataclass(frozen=True)
class FaultOrder:
    """What shall happen at a point."""

    fault: int
    """The number of the fault in its schedule."""
    do: str
    """raise, kill, slow, or the name of an error of the system, such as ENOSPC."""
    for_s: float = 0.0
    """Seconds for which it happens to everybody who passes, from the first one on; 0: only to that one."""


@dataclass(frozen=True)
class OrderBook:
    """The folder of orders of a run, and the file that tells which of them happened."""

    folder: str

    def open(self) -> None:
        for point in POINTS:
            Path(self.folder, point).mkdir(parents=True)

    def put(self, point: str, order: FaultOrder) -> None:
        _write(Path(self.folder, point, f"{order.fault}{_WAITS}"), asdict(order))

    def withdraw(self, point: str, fault: int) -> None:
        """Take back an order that nobody took, or clear away one that is over."""
        for suffix in (_WAITS, _LASTS):
            Path(self.folder, point, f"{fault}{suffix}").unlink(missing_ok=True)

    def set_clock(self, fault: int, ahead_s: float) -> None:
        """Let the driver's clock be ahead by so much from now on."""
        _write(Path(self.folder, CLOCK), {"fault": fault, "ahead_s": ahead_s})

    def note(self, fault: int, at_s: float | None = None, **facts: Any) -> None:
        """Tell that a fault has happened now, or at that time; said twice, it counts once."""
        line = {"fault": fault, "at_s": at_s or time.time(), "pid": os.getpid(), **facts}
        with open(f"{self.folder}/fired.jsonl", "ab") as file:
            file.write(json.dumps(line, default=str).encode() + b"\n")

    def happened(self) -> dict[int, dict[str, Any]]:
        """The faults that have happened, each with when and to whom it first did."""
        found: dict[int, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in Path(self.folder, "fired.jsonl").read_bytes().splitlines():
                facts = json.loads(line)
                found.setdefault(facts["fault"], facts)
        return found


@dataclass(frozen=True)
class Ordered:
    """The action at a fault point that obeys orders. A value, so that settings can ship it."""

    book: OrderBook
    point: str
    then: Action | None = None
    """What else a trial does at this point."""

    def __call__(self, facts: Mapping[str, Any]) -> float | None:
        with suppress(FileNotFoundError):  # the run is over, or another process took the order
            for name in os.listdir(f"{self.book.folder}/{self.point}"):
                self._look_at(Path(self.book.folder, self.point, name), facts)
        return None if self.then is None else self.then(facts)

    def _look_at(self, file: Path, facts: Mapping[str, Any]) -> None:
        known = FAULT_POINTS.get(self.point)
        told = {name: facts[name] for name in known.where} if known else {}
        if file.suffix == _WAITS:
            order = FaultOrder(**json.loads(file.read_bytes()))
            taken = file.with_suffix(_LASTS)
            file.rename(taken)
            os.utime(taken, (time.time(),) * 2)
            if not order.for_s:
                taken.unlink()
            self.book.note(order.fault, **told)
            self._obey(order, told)
        elif file.suffix == _LASTS:
            order = FaultOrder(**json.loads(file.read_bytes()))
            if time.time() < file.stat().st_mtime + order.for_s:
                self._obey(order, told)

    def _obey(self, order: FaultOrder, told: Mapping[str, Any]) -> None:
        if order.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.do == "raise":
            raise InjectedFault(self.point, told)
        if order.do == "slow":
            time.sleep(_SLOW_S)
        else:
            number = getattr(errno, order.do)
            raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class OrderedClock:
    """The action at the driver's clock: it is ahead by as much as was said last."""

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
