"""Figures of a live run: latencies, hosts, and how even their loads were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from penstock.control.examine.epochs import EpochCost
from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress
from penstock.sim.shapes import shape
from penstock_bench.live.latency import Began, Truth
from penstock_bench.live.load import possible
from penstock_bench.switch.projection import Projected, projected
from penstock_bench.switch.scenarios import LiveScenario

_SETTLED = 0.6
"""Last part of each steady load that is measured, as a share of its length."""


@dataclass(frozen=True)
class LiveOutcome:
    """The figures of a live run. Times are seconds from the start of the load."""

    name: str
    policy: str | None
    success: float
    """Share of slots and windows that kept the SLA, by each row's latency from arrival to sink."""
    success_of_worst_slot: float
    possible: float | None
    """Upper bound of the success: that of a single queue in the order of arrival, from which the most hosts
    that are allowed take from the start, at no further cost. None if not computed."""
    hosts: float
    """Average number of hosts over time; a new host counts from its first epoch."""
    rows: int
    epochs: int
    epoch_ms: float
    """Median length of an epoch in milliseconds."""
    longest_epoch_ms: float
    helped_rows: int
    """Rows that new hosts processed in the middle of an epoch."""
    treatments: dict[str, int]
    max_over_mean: list[float]
    """Rows of the busiest host divided by the mean, in the last third of each period of a hotspot."""
    by_second: dict[str, list[float | None]]
    began: list[dict[str, Any]]
    """Treatments: when each began, and its text."""
    projections: list[Projected]
    """Projected and measured latency of each steady load."""
    settings: dict[str, Any]


def outcome_of(
    scenario: LiveScenario,
    latencies: Truth,
    epochs: Sequence[EpochProgress],
    journal: Sequence[Entry],
    began: Began,
) -> LiveOutcome:
    """The figures of a run that the report keeps."""
    counted = since(epochs, began.start_ms, scenario.seconds)
    success = latencies.success(scenario.sla, scenario.warm_up_s)
    treatments = [e for e in journal if e.event == "began" and e.time_ms >= began.start_ms]
    kinds = Counter(
        treatment["kind"] for entry in treatments for treatment in entry.facts["treatments"]
    )
    lengths = [epoch.sink_ms + epoch.seal_ms for epoch in counted]
    hotspot = scenario.period_s > 0 and scenario.policy is not None
    return LiveOutcome(
        name=scenario.name,
        policy=scenario.policy,
        success=float(success.mean()),
        success_of_worst_slot=float(success.min()),
        possible=_possible(scenario, latencies),
        hosts=average_hosts(counted, scenario.warm_up_s, scenario.seconds),
        rows=len(latencies.row_ms),
        epochs=len(counted),
        epoch_ms=float(np.median(lengths)),
        longest_epoch_ms=float(max(lengths)),
        helped_rows=sum(epoch.migration.helped_rows for epoch in counted),
        treatments={kind: kinds[kind] for kind in ("scale_out", "scale_in", "balance")},
        max_over_mean=max_over_mean(counted, scenario) if hotspot else [],
        by_second=latencies.by_second(scenario.seconds)
        | {"hosts": hosts_by_second(counted, scenario.seconds)},
        began=[
            {
                "at_s": round((entry.time_ms - began.start_ms) / 1000, 2),
                "text": entry.text,
            }
            for entry in treatments
        ],
        projections=[] if scenario.policy is not None else _steady(scenario, latencies, counted),
        settings=asdict(scenario),
    )


def _possible(scenario: LiveScenario, latencies: Truth) -> float | None:
    if scenario.workload != "exchange" or not isinstance(scenario.host_rate, float):
        return None
    rate = scenario.host_rate * scenario.at_most
    return possible(latencies, rate, scenario.sla, scenario.warm_up_s, scenario.seconds)


def since(epochs: Sequence[EpochProgress], start_ms: int, seconds: float) -> list[EpochProgress]:
    """The epochs that began during the load, with times counted from its start."""
    return [
        replace(epoch, started_ms=epoch.started_ms - start_ms)
        for epoch in epochs
        if 0 <= epoch.started_ms - start_ms < seconds * 1000
    ]


def average_hosts(epochs: Sequence[EpochProgress], from_s: float, to_s: float) -> float:
    """Average number of hosts over time: an epoch counts until the next one begins."""
    times = np.clip([e.started_ms / 1000 for e in epochs] + [to_s], from_s, to_s)
    sizes = np.array([len(epoch.hosts) for epoch in epochs])
    return float(sizes @ np.diff(times)) / float(times[-1] - times[0])


def max_over_mean(epochs: Sequence[EpochProgress], scenario: LiveScenario) -> list[float]:
    """Rows of the busiest host divided by the mean, in the last third of each period of the hotspot."""
    ratios = []
    for number in range(scenario.seconds // scenario.period_s):
        end_ms = (number + 1) * scenario.period_s * 1000
        rows: Counter[str] = Counter()
        for epoch in epochs:
            if end_ms - scenario.period_s * 1000 / 3 <= epoch.started_ms < end_ms:
                rows.update({host.host: host.rows for host in epoch.hosts})
        if rows:
            ratios.append(round(max(rows.values()) * scenario.at_least / sum(rows.values()), 3))
    return ratios


def of_step(epochs: Sequence[EpochProgress], step: str) -> list[EpochProgress]:
    """The epochs, reduced to the hosts of one step."""
    return [
        replace(epoch, hosts=tuple(h for h in epoch.hosts if h.host.rsplit("/", 1)[0] == step))
        for epoch in epochs
    ]


def hosts_by_second(epochs: Sequence[EpochProgress], seconds: int) -> list[float | None]:
    """Number of hosts at the end of each second."""
    times = np.array([epoch.started_ms / 1000 for epoch in epochs])
    newest = np.searchsorted(times, np.arange(1, seconds + 1)) - 1
    return [float(len(epochs[at].hosts)) if at >= 0 else None for at in newest.tolist()]


def _steady(
    scenario: LiveScenario, latencies: Truth, epochs: Sequence[EpochProgress]
) -> list[Projected]:
    """Projected and measured latency of each steady part of the load, once it has settled."""
    assert isinstance(scenario.host_rate, float)
    parts = []
    rate_at = shape(scenario.load).rate_at
    for start_s in range(0, scenario.seconds, scenario.period_s):
        from_s, to_s = start_s + scenario.period_s * (1 - _SETTLED), start_s + scenario.period_s
        cost = EpochCost()
        for epoch in epochs:
            if from_s <= epoch.started_ms / 1000 < to_s:
                done_ms = epoch.started_ms + epoch.sink_ms + epoch.seal_ms
                useful_ms = max((host.useful_ms for host in epoch.hosts), default=0.0)
                cost.note(epoch.started_ms, done_ms, useful_ms)
        # Latency runs up to the sink, and rows of the last second may not be there yet.
        mean_ms = latencies.mean_ms(from_s, to_s - 1)
        rate = float(rate_at(from_s)) / scenario.hosts
        parts.append(projected("live", rate, scenario.host_rate, cost.ms, mean_ms))
    return parts
