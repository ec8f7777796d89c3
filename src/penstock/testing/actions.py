"""Actions at trial points: hosts that are slow or come late, and couriers that combine nothing.

They let a small machine stand for many. Each is a value that settings can ship to every process of a
flow; with `hits=()` it acts at every passing:

>>> from penstock import Settings
>>> from penstock.testing import Fault
>>> slow = Settings(faults=(
...     Fault("host.work", Pace(1_000), where={"step": "count"}, hits=()),
...     Fault("courier.sender", Uncombined(), hits=()),
... ))
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError

_turns: defaultdict[Any, threading.Lock] = defaultdict(threading.Lock)
"""Held by the channel that a host of this name works on; by thread for those that are no hosts."""


@dataclass(frozen=True)
class Pace:
    """Makes a host, a courier or a burst worker take at most `rate` records a second.

    Acts at `host.work`, `courier.work` and `burst.work`. The time that the work took anyhow is part
    of the pace. A host works on one channel at a time.

    >>> waited = []
    >>> Pace(40, wait=waited.append)({"host": "sum/0", "records": 10, "took_s": 0.125})
    0.125
    >>> waited
    [0.125]
    """

    rate: float
    wait: Callable[[float], object] | None = None
    """Waits for some seconds. None: on the real clock, until the host ends."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise SettingError(f"a pace of {self.rate:g} records a second", hint="use more than 0")

    def __call__(self, facts: Mapping[str, Any]) -> float:
        rest_s = max(0.0, facts["records"] / self.rate - facts["took_s"])
        if rest_s:
            until = facts.get("until") or threading.Event()
            with _turns[facts.get("host", threading.get_ident())]:
                (self.wait or until.wait)(rest_s)
        return float(rest_s)


@dataclass(frozen=True)
class Delay:
    """Makes a host come later by some milliseconds, as if its machine had to be started first.

    Acts at `driver.host`, where `hits` tell hosts that a flow starts with from those that it asks for
    later: hosts of a step are asked for one after the other.
    """

    ms: float

    def __call__(self, facts: Mapping[str, Any]) -> None:
        facts["until"].wait(self.ms / 1000)


@dataclass(frozen=True)
class Uncombined:
    """Makes couriers send each row, or each of its windows, as a record: hosts have all the work.

    Acts at `courier.sender`. Not even the rows of a hot key are combined. Burst workers combine what
    they are given in any case.
    """

    def __call__(self, facts: Mapping[str, Any]) -> None:
        if facts["sender"].combines:
            facts["sender"].combines = False
