"""The trace of a query: the spans of all processes, and the path of each trigger through them.

`penstock bench pipeline --trace` makes one, and `FlowQuery.trace`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from penstock.driver.phases import PATH, PHASES, SparkTrigger, path_of, summed
from penstock.driver.progress import EpochProgress
from penstock.spans import Span

_FIRST = (PATH, "spark", "driver")
"""Processes that a viewer shows first, in this order."""


@dataclass(frozen=True)
class Trace:
    """Some triggers of a query: what each process did, and when.

    >>> trace = Trace([[Span(3, PATH, "planning", 10.0, 4.0), Span(3, PATH, "seal", 14.0, 2.0)]], [])
    >>> trace.phases, trace.trigger_ms
    ({'planning': 4.0, 'seal': 2.0}, 6.0)
    """

    paths: Sequence[Sequence[Span]]
    """The phases of each trigger, one after the other."""
    spans: Sequence[Span]
    """Work of all processes in these triggers."""

    @staticmethod
    def of(progress: Sequence[EpochProgress], triggers: Sequence[SparkTrigger]) -> Trace:
        """The trace of all triggers that Spark has reported, but the last: it ends with the next one."""
        known = {epoch.epoch for epoch in progress}
        spans = [span for epoch in progress for span in epoch.spans]
        return Trace._of(spans, [trigger for trigger in triggers if trigger.epoch in known])

    @staticmethod
    def of_spark(triggers: Sequence[SparkTrigger]) -> Trace:
        """The trace of a query of Spark's own: only Spark's phases are known."""
        return Trace._of([], triggers)

    @staticmethod
    def _of(spans: Sequence[Span], triggers: Sequence[SparkTrigger]) -> Trace:
        by_epoch: dict[int, list[Span]] = {}
        for span in spans:
            by_epoch.setdefault(span.epoch, []).append(span)
        paths, shown = [], list[Span]()
        for trigger, after in pairwise(sorted(triggers, key=lambda t: t.epoch)):
            if after.epoch == trigger.epoch + 1:
                mine = by_epoch.get(trigger.epoch, [])
                paths.append(path_of(mine, trigger, after.started_ms))
                shown += [*mine, *trigger.tasks]
        return Trace(paths, shown)

    def last(self, triggers: int) -> Trace:
        """The trace of the newest triggers only."""
        paths = self.paths[-triggers:]
        epochs = {path[0].epoch for path in paths if path}
        return Trace(paths, [span for span in self.spans if span.epoch in epochs])

    def plus(self, other: Trace) -> Trace:
        return Trace([*self.paths, *other.paths], [*self.spans, *other.spans])

    def by_epoch(self) -> dict[int, dict[str, float]]:
        """Epoch -> phase -> milliseconds. The phases of an epoch add up to its trigger."""
        return {path[0].epoch: summed(path) for path in self.paths if path}

    @property
    def trigger_ms(self) -> float:
        """Mean milliseconds from a trigger to the next."""
        return fmean(sum(step.took_ms for step in path) for path in self.paths)

    @property
    def phases(self) -> dict[str, float]:
        """Phase -> mean milliseconds per trigger. They add up to `trigger_ms`."""
        return mean_phases(list(self.by_epoch().values()))

    def to_chrome(self) -> str:
        """The trace as JSON in Chrome's format, which Perfetto (ui.perfetto.dev) opens."""
        spans = [*(step for path in self.paths for step in path), *self.spans]
        names = sorted({span.where for span in spans}, key=_rank)
        numbers = {name: number for number, name in enumerate(names, 1)}
        events: list[dict[str, Any]] = []
        for name, pid in numbers.items():
            events.append(_meta("process_name", pid, {"name": name}))
            events.append(_meta("process_sort_index", pid, {"sort_index": pid}))
        events += [
            {
                "name": span.name,
                "cat": "phase" if span.where == PATH else "span",
                "ph": "X",
                "ts": round(span.start_ms * 1000),
                "dur": max(1, round(span.took_ms * 1000)),
                "pid": numbers[span.where],
                # Channels of one host overlap, so each has a row of its own.
                "tid": span.channel + 1,
                "args": {"epoch": span.epoch, "what": PHASES.get(span.name, "")},
            }
            for span in spans
        ]
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def mean_phases(accounts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Phase -> mean milliseconds over some triggers. A phase that a trigger lacks counts as 0.

    >>> mean_phases([{"seal": 2.0}, {"planning": 4.0, "seal": 4.0}])
    {'planning': 2.0, 'seal': 3.0}
    """
    named = [phase for phase in PHASES if any(phase in account for account in accounts)]
    return {p: round(fmean(account.get(p, 0.0) for account in accounts), 3) for p in named}


def _rank(where: str) -> tuple[int, str]:
    return (_FIRST.index(where) if where in _FIRST else len(_FIRST), where)


def _meta(name: str, pid: int, args: dict[str, Any]) -> dict[str, Any]:
    """A fact about a process, for the viewer."""
    return {"name": name, "ph": "M", "pid": pid, "args": args}
