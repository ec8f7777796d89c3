"""Actions for trial points: slow hosts, hosts that start late, and couriers that do not combine rows.

They let one small machine behave like a cluster. Each action is a value that `Settings.faults` ships to every
process of a flow. With `hits=()` it acts every time the point is passed:

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
"""Locks by host name, so that a host processes one channel at a time. Others have one per thread."""


@dataclass(frozen=True)
class Pace:
    """Slows a host, a courier or a burst worker down to at most `rate` records per second.

    Acts at `host.work`, `courier.work` and `burst.work`. The time that the work really took is subtracted
    from the wait. A host waits for one channel at a time.

    >>> waited = []
    >>> Pace(40, wait=waited.append)({"host": "sum/0", "records": 10, "took_s": 0.125})
    0.125
    >>> waited
    [0.125]
    """

    rate: float
    wait: Callable[[float], object] | None = None
    """Function that waits for a number of seconds. None: waits on the real clock, or until the host ends."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise SettingError(
                f"the rate of a Pace is {self.rate:g} records per second", hint="use more than 0"
            )

    def __call__(self, facts: Mapping[str, Any]) -> float:
        rest_s = max(0.0, facts["records"] / self.rate - facts["took_s"])
        if rest_s:
            until = facts.get("until") or threading.Event()
            with _turns[facts.get("host", threading.get_ident())]:
                (self.wait or until.wait)(rest_s)
        return float(rest_s)


@dataclass(frozen=True)
class Delay:
    """Delays the start of a host, as if its machine had to be started first.

    Acts at `driver.host`. The hosts of a step are requested one after the other, so `hits` can select hosts
    that are added after the start of the flow.
    """

    ms: float
    """Length of the delay in milliseconds."""

    def __call__(self, facts: Mapping[str, Any]) -> None:
        facts["until"].wait(self.ms / 1000)


@dataclass(frozen=True)
class Uncombined:
    """Stops couriers from combining rows: each row, or each of its windows, becomes a record for a host.

    Acts at `courier.sender`. It also applies to the rows of hot keys. Burst workers still combine their rows.
    """

    def __call__(self, facts: Mapping[str, Any]) -> None:
        if facts["sender"].combines:
            facts["sender"].combines = False
