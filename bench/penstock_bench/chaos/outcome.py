"""The figures of a run, from what was noted while it went on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.model import SLA
from penstock_bench.chaos.kinds import KINDS, DueFault
from penstock_bench.chaos.load import arrivals
from penstock_bench.chaos.oracle import SinkDifference, SparkLog
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.live.latency import Delivered, truth

BOUND = SLA(1000, 1000)


@dataclass(frozen=True)
class ChaosOutcome:
    """What a run gave."""

    plan: ChaosPlan
    faults: list[dict[str, Any]]
    """Every fault of the schedule: its kind, when it was due and when it happened (None: it did not),
    and the seconds until the query had recovered."""
    kinds: list[dict[str, Any]]
    """By kind: how many were due, how many happened, and recovery times."""
    recover_p99_s: float
    success: float
    """The share of windows of 1 s in which the mean latency was at most 1 s, while faults came."""
    by_second: dict[str, list[float | None]]
    epochs: int
    starts: int
    """Starts of the query: one, and one for each time that it failed or its driver died."""
    failures: list[str]
    """Why the query failed, each time."""
    helped: int
    """Rows that functions took."""
    difference: SinkDifference
    late: int
    """Rows that came behind the watermark. There must be none."""


def recovery_s(at_s: float, done_s: Sequence[float]) -> float | None:
    """Seconds from a fault until an epoch is done that began after it; None: there was none.

    The first epoch that is done after a fault may have been under way by then; the second was not.

    >>> recovery_s(1.0, [0.5, 1.25, 2.5, 3.0]), recovery_s(2.6, [0.5, 1.25, 2.5, 3.0])
    (1.5, None)
    """
    second = bisect_right(done_s, at_s) + 1
    return done_s[second] - at_s if second < len(done_s) else None


def outcome_of(
    plan: ChaosPlan,
    log: SparkLog,
    schedule: Sequence[DueFault],
    happened: Mapping[int, Mapping[str, Any]],
    epochs: Sequence[Mapping[str, Any]],
    starts: int,
    failures: list[str],
    difference: SinkDifference,
) -> ChaosOutcome:
    """The figures. `epochs` are the driver's notes."""
    assert log.began is not None
    done_s = sorted(epoch["at_s"] for epoch in epochs)
    faults = [
        _told(due, happened.get(due.number), done_s, log.began.start_ms / 1000) for due in schedule
    ]
    first = {epoch["epoch"]: epoch["at_s"] for epoch in reversed(epochs)}
    reached = np.maximum.accumulate([first[number] for number in sorted(first)])
    delivered = [
        Delivered(log.row(number), 1000 * at_s)
        for number, at_s in zip(sorted(first), reached.tolist(), strict=True)
        if number in log.ends
    ]
    found = truth(
        arrivals(plan), lambda n, _: np.zeros_like(n), 1, log.began, delivered, plan.seconds
    )
    return ChaosOutcome(
        plan=plan,
        faults=faults,
        kinds=_by_kind(faults),
        recover_p99_s=_percentile(_times(faults), 99),
        success=float(found.success(BOUND, plan.calm_s)[0]),
        by_second=found.by_second(int(plan.seconds)),
        epochs=len(log.ends),
        starts=starts,
        failures=failures,
        helped=sum(epoch["helped"] for epoch in epochs),
        difference=difference,
        late=sum(epoch["late"] for epoch in epochs),
    )


def _told(
    due: DueFault, happened: Mapping[str, Any] | None, done_s: Sequence[float], start_s: float
) -> dict[str, Any]:
    at_s = None if happened is None else happened["at_s"]
    took_s = None if at_s is None else recovery_s(at_s, done_s)
    return {
        "number": due.number,
        "kind": due.kind,
        "group": KINDS[due.kind].group,
        "due_s": due.at_s,
        "happened_s": None if at_s is None else round(at_s - start_s, 3),
        "recovered_s": None if took_s is None else round(took_s, 3),
    }


def _by_kind(faults: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for kind in sorted({fault["kind"] for fault in faults}):
        due = [fault for fault in faults if fault["kind"] == kind]
        times = _times(due)
        row: dict[str, Any] = {"kind": kind, "due": len(due), "happened": len(times)}
        if times:
            row |= {f"p{p}_s": round(_percentile(times, p), 3) for p in (50, 99)}
            row |= {"max_s": round(max(times), 3)}
        found.append(row)
    return found


def _times(faults: Sequence[Mapping[str, Any]]) -> list[float]:
    """Recovery times of those that happened; infinite if there was no recovery."""
    happened = [fault for fault in faults if fault["happened_s"] is not None]
    times = [fault["recovered_s"] for fault in happened]
    return [float("inf") if time is None else time for time in times]


def _percentile(values: Sequence[float], p: float) -> float:
    """The value that `p` per cent of the values do not exceed; nan of none.

    >>> _percentile([3.0, 1.0, 2.0], 99)
    3.0
    """
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return float(ordered[min(len(ordered) - 1, int(np.ceil(p / 100 * len(ordered))) - 1)])
