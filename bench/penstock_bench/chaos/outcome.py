"""Metrics of a run, computed from its notes."""

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
    """The result of a run."""

    plan: ChaosPlan
    faults: list[dict[str, Any]]
    """All scheduled faults: kind, seconds at which it was due and happened (None if it did not), and seconds
    until the query had recovered."""
    kinds: list[dict[str, Any]]
    """For each kind, the numbers of faults that were due and that happened, and recovery times."""
    recover_p99_s: float
    success: float
    """Share of 1 s windows during the faults in which the mean latency was at most 1 s."""
    by_second: dict[str, list[float | None]]
    epochs: int
    starts: int
    """Number of starts of the query: one, and one more for each failure of the query or its driver."""
    failures: list[str]
    """Error message of each failure of the query."""
    helped: int
    """Number of rows processed by functions."""
    difference: SinkDifference
    late: int
    """Number of rows behind the watermark, which must be 0."""


def recovery_s(at_s: float, done_s: Sequence[float]) -> float | None:
    """Seconds from a fault until an epoch that began after it is done; None if there is no such epoch.

    The first epoch that ends after a fault may have begun before it; the second one has not.

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
    """Compute the metrics of a run. `epochs` are the driver's notes."""
    assert log.began is not None
    done_s = sorted(epoch["at_s"] for epoch in epochs)
    faults = [
        _as_row(due, happened.get(due.number), done_s, log.began.start_ms / 1000)
        for due in schedule
    ]
    first = {epoch["epoch"]: epoch["at_s"] for epoch in reversed(epochs)}
    reached = np.maximum.accumulate([first[number] for number in sorted(first)])
    delivered = [
        Delivered(log.row(number), 1000 * at_s)
        for number, at_s in zip(sorted(first), reached.tolist(), strict=True)
        if number in log.ends
    ]
    latencies = truth(
        arrivals(plan), lambda n, _: np.zeros_like(n), 1, log.began, delivered, plan.seconds
    )
    return ChaosOutcome(
        plan=plan,
        faults=faults,
        kinds=_by_kind(faults),
        recover_p99_s=_percentile(_times(faults), 99),
        success=float(latencies.success(BOUND, plan.calm_s)[0]),
        by_second=latencies.by_second(int(plan.seconds)),
        epochs=len(log.ends),
        starts=starts,
        failures=failures,
        helped=sum(epoch["helped"] for epoch in epochs),
        difference=difference,
        late=sum(epoch["late"] for epoch in epochs),
    )


def _as_row(
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
    rows = []
    for kind in sorted({fault["kind"] for fault in faults}):
        due = [fault for fault in faults if fault["kind"] == kind]
        times = _times(due)
        row: dict[str, Any] = {"kind": kind, "due": len(due), "happened": len(times)}
        if times:
            row |= {f"p{p}_s": round(_percentile(times, p), 3) for p in (50, 99)}
            row |= {"max_s": round(max(times), 3)}
        rows.append(row)
    return rows


def _times(faults: Sequence[Mapping[str, Any]]) -> list[float]:
    """Recovery times in seconds of the faults that happened; infinite if there was no recovery."""
    happened = [fault for fault in faults if fault["happened_s"] is not None]
    times = [fault["recovered_s"] for fault in happened]
    return [float("inf") if time is None else time for time in times]


def _percentile(values: Sequence[float], p: float) -> float:
    """The value that `p` per cent of the values do not exceed; nan if there are no values.

    >>> _percentile([3.0, 1.0, 2.0], 99)
    3.0
    """
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return float(ordered[min(len(ordered) - 1, int(np.ceil(p / 100 * len(ordered))) - 1)])
