"""Log lines about the SLA: one when it is missed for a while, one when it is kept again."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.model import SLA
from penstock.observe.moment import Moment

_log = logging.getLogger("penstock.sla")

_MISSED_S = 3.0
"""Seconds of missed windows, within somewhat more time, after which the SLA counts as missed."""
_WITHIN = 5 / 3
_KEPT_S = 10.0
"""Seconds in which every window must be kept before the SLA counts as kept again."""


@dataclass
class SlaWatch:
    """Tells when a query begins to miss its SLA, and when it keeps it again. Pure.

    One bad window among good ones is not told, unless it lasts for seconds itself.

    >>> watch = SlaWatch()
    >>> sla = SLA(latency_ms=1000, window_ms=1000)
    >>> [watch.judge(sla, missed=1, kept=0) for _ in range(4)]
    [None, None, 'missed', None]
    >>> [watch.judge(sla, missed=0, kept=5) for _ in range(3)]
    [None, 'kept', None]
    """

    missing: bool = False
    """Whether the SLA is missed for now."""
    _windows: deque[bool] = field(default_factory=deque)
    """The newest windows, oldest first: whether each was kept."""

    def judge(self, sla: SLA, missed: int, kept: int) -> str | None:
        """Take in windows that ended. Returns "missed" or "kept" if that changes what is the case."""
        bad, good = (max(1, math.ceil(s * 1000 / sla.window_ms)) for s in (_MISSED_S, _KEPT_S))
        self._windows.extend([False] * missed + [True] * kept)
        while len(self._windows) > max(good, round(bad * _WITHIN)):
            self._windows.popleft()
        newest = list(self._windows)
        if not self.missing and newest[-round(bad * _WITHIN) :].count(False) >= bad:
            self.missing = True
            return "missed"
        if self.missing and len(newest) >= good and all(newest[-good:]):
            self.missing = False
            return "kept"
        return None


class SlaLog:
    """Logs when a query misses its SLA and when it keeps it again. `take` is for `Recorder.watch`."""

    def __init__(self, query: str) -> None:
        self._query, self._watch = query, SlaWatch()
        self._since_ms = 0.0

    def take(self, moment: Moment) -> None:
        """Take in a moment."""
        sla = moment.sla
        if sla is None:
            return
        change = self._watch.judge(sla, moment.windows - moment.kept, moment.kept)
        if change is None:
            return
        fields: dict[str, Any] = {"query": self._query, "bound_ms": sla.latency_ms}
        fields |= {"epoch": moment.epoch, "hosts": moment.hosts, "backlog": moment.backlog}
        latency = "unknown"
        if moment.latency is not None:
            fields["latency_ms"] = round(moment.latency.mean_ms)
            latency = f"{moment.latency.mean_ms:,.0f} ms"
        if change == "missed":
            self._since_ms = moment.time_ms
            _log.warning(
                "Query %s misses its SLA: latency is %s, the bound is %s ms; %s rows wait, hosts: %d.",
                self._query,
                latency,
                f"{sla.latency_ms:,}",
                f"{moment.backlog:,}",
                moment.hosts,
                extra=fields,
            )
        else:
            took_s = (moment.time_ms - self._since_ms) / 1000
            _log.warning(
                "Query %s keeps its SLA again after %.0f s: latency is %s, the bound is %s ms.",
                self._query,
                took_s,
                latency,
                f"{sla.latency_ms:,}",
                extra=fields | {"took_ms": round(took_s * 1000)},
            )
