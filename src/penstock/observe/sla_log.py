"""Log lines about each bound of the SLA: one when it is missed for a while, one when it is kept again."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.model import LatencyBound
from penstock.observe.bounds import BoundMoment
from penstock.observe.moment import Moment

_log = logging.getLogger("penstock.sla")

_MISSED_S = 3.0
"""Seconds of missed windows, within somewhat more time, after which the SLA counts as missed."""
_WITHIN = 5 / 3
_KEPT_S = 10.0
"""Seconds in which every window must be kept before the SLA counts as kept again."""


@dataclass
class SlaWatch:
    """Tells when a query begins to miss a bound of its SLA, and when it keeps it again. Pure.

    One bad window among good ones is not told, unless it lasts for seconds itself.

    >>> watch = SlaWatch()
    >>> bound = LatencyBound(latency_ms=1000, window_ms=1000)
    >>> [watch.judge(bound, missed=1, kept=0) for _ in range(4)]
    [None, None, 'missed', None]
    >>> [watch.judge(bound, missed=0, kept=5) for _ in range(3)]
    [None, 'kept', None]
    """

    missing: bool = False
    """Whether the bound is missed for now."""
    since_ms: float = 0.0
    """When it began to be missed, in milliseconds since 1970."""
    _windows: deque[bool] = field(default_factory=deque)
    """The newest windows, oldest first: whether each was kept."""

    def judge(self, bound: LatencyBound, missed: int, kept: int) -> str | None:
        """Take in windows that ended. Returns "missed" or "kept" if that changes what is the case."""
        bad, good = (max(1, math.ceil(s * 1000 / bound.window_ms)) for s in (_MISSED_S, _KEPT_S))
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
    """Logs when a query misses a bound of its SLA and when it keeps it again. `take` is for
    `Recorder.watch`."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._watches: dict[tuple[str, str | None], SlaWatch] = {}
        """Figure and step of each bound -> its watch."""

    def take(self, moment: Moment) -> None:
        """Take in a moment."""
        for bound in moment.all_bounds:
            watch = self._watches.setdefault((bound.kind, bound.step), SlaWatch())
            change = watch.judge(bound, bound.windows - bound.kept, bound.kept)
            if change == "missed":
                watch.since_ms = moment.time_ms
                self._missed(bound, moment)
            elif change == "kept":
                self._kept(bound, moment, (moment.time_ms - watch.since_ms) / 1000)

    def _missed(self, bound: BoundMoment, moment: Moment) -> None:
        _log.warning(
            "Query %s misses its SLA: %s is %s, the bound is %s ms; %s rows wait, hosts: %d.",
            self._query,
            _named(bound),
            _figure(bound),
            f"{bound.latency_ms:,}",
            f"{moment.backlog:,}",
            moment.hosts,
            extra=self._fields(bound, moment),
        )

    def _kept(self, bound: BoundMoment, moment: Moment, took_s: float) -> None:
        _log.warning(
            "Query %s keeps its SLA again after %.0f s: %s is %s, the bound is %s ms.",
            self._query,
            took_s,
            _named(bound),
            _figure(bound),
            f"{bound.latency_ms:,}",
            extra=self._fields(bound, moment) | {"took_ms": round(took_s * 1000)},
        )

    def _fields(self, bound: BoundMoment, moment: Moment) -> dict[str, Any]:
        fields: dict[str, Any] = {"query": self._query, "bound_ms": bound.latency_ms}
        fields |= {"figure": bound.kind, "epoch": moment.epoch, "hosts": moment.hosts}
        fields["backlog"] = moment.backlog
        if bound.step is not None:
            fields["step"] = bound.step
        if bound.reached_ms is not None:
            fields["latency_ms"] = round(bound.reached_ms)
        return fields


def _named(bound: BoundMoment) -> str:
    """The figure in words. The flow's average is what people mean by its latency."""
    return "latency" if bound.kind == "mean" and bound.step is None else bound.what


def _figure(bound: BoundMoment) -> str:
    return "unknown" if bound.reached_ms is None else f"{bound.reached_ms:,.0f} ms"
