"""What is made of a live run: its latencies, its hosts, how even their loads were."""

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
from penstock_bench.switch.projection import Projected, projected
from penstock_bench.switch.scenarios import LiveScenario

_SETTLED = 0.6
"""The last part of a steady load: what it settled at."""


@dataclass(frozen=True)
class LiveOutcome:
    """What a live run gave. Times are seconds from the beginning of the load."""

    name: str
    policy: str | None
    success: float
    """Share of slots and windows that kept the SLA, by every row's latency from arrival to sink."""
    success_of_worst_slot: float
    hosts: float
    """Hosts on average over time; one that starts counts from its first epoch on."""
    rows: int
    epochs: int
    epoch_ms: float
    """The median length."""
    treatments: dict[str, int]
    max_over_mean: list[float]
    """The busiest host's rows over the mean, in the last third of each place of a hotspot."""
    by_second: dict[str, list[float | None]]
    began: list[dict[str, Any]]
    """When which treatments began."""
    projections: list[Projected]
    """What was projected and measured of a steady load."""
    settings: dict[str, Any]


def outcome_of(
    scenario: LiveScenario,
    found: Truth,
    epochs: Sequence[EpochProgress],
    journal: Sequence[Entry],
    began: Began,
) -> LiveOutcome:
    """All that the report tells of a run."""
    counted = since(epochs, began.start_ms, scenario.seconds)
    success = found.success(scenario.sla, scenario.warm_up_s)
    treatments = [e for e in journal if e.event == "began" and e.time_ms >= began.start_ms]
    kinds = Counter(one["kind"] for entry in treatments for one in entry.facts["treatments"])
    lengths = [epoch.sink_ms + epoch.seal_ms for epoch in counted]
    hotspot = scenario.period_s > 0 and scenario.policy is not None
    return LiveOutcome(
        name=scenario.name,
        policy=scenario.policy,
        success=float(success.mean()),
        success_of_worst_slot=float(success.min()),
        hosts=average_hosts(counted, scenario.warm_up_s, scenario.seconds),
        rows=len(found.row_ms),
        epochs=len(counted),
        epoch_ms=float(np.median(lengths)),
        treatments={kind: kinds[kind] for kind in ("scale_out", "scale_in", "balance")},
        max_over_mean=max_over_mean(counted, scenario) if hotspot else [],
        by_second=found.by_second(scenario.seconds)
        | {"hosts": hosts_by_second(counted, scenario.seconds)},
        began=[
            {
                "at_s": round((entry.time_ms - began.start_ms) / 1000, 2),
                "text": entry.text,
            }
            for entry in treatments
        ],
        projections=[] if scenario.policy is not None else _steady(scenario, found, counted),
        settings=asdict(scenario),
    )


def since(epochs: Sequence[EpochProgress], start_ms: int, seconds: float) -> list[EpochProgress]:
    """The epochs that began in the time of the load, with times from its beginning on."""
    return [
        replace(epoch, started_ms=epoch.started_ms - start_ms)
        for epoch in epochs
        if 0 <= epoch.started_ms - start_ms < seconds * 1000
    ]


def average_hosts(epochs: Sequence[EpochProgress], from_s: float, to_s: float) -> float:
    """Over time: an epoch counts until the next one begins."""
    times = np.clip([e.started_ms / 1000 for e in epochs] + [to_s], from_s, to_s)
    sizes = np.array([len(epoch.hosts) for epoch in epochs])
    return float(sizes @ np.diff(times)) / float(times[-1] - times[0])


def max_over_mean(epochs: Sequence[EpochProgress], scenario: LiveScenario) -> list[float]:
    """For each place of the hotspot, in its last third: the busiest host's rows over the mean."""
    told = []
    for number in range(scenario.seconds // scenario.period_s):
        end_ms = (number + 1) * scenario.period_s * 1000
        rows: Counter[str] = Counter()
        for epoch in epochs:
            if end_ms - scenario.period_s * 1000 / 3 <= epoch.started_ms < end_ms:
                rows.update({host.host: host.rows for host in epoch.hosts})
        if rows:
            told.append(round(max(rows.values()) * scenario.at_least / sum(rows.values()), 3))
    return told


def of_step(epochs: Sequence[EpochProgress], step: str) -> list[EpochProgress]:
    """The epochs with the hosts of one step only."""
    return [
        replace(epoch, hosts=tuple(h for h in epoch.hosts if h.host.rsplit("/", 1)[0] == step))
        for epoch in epochs
    ]


def hosts_by_second(epochs: Sequence[EpochProgress], seconds: int) -> list[float | None]:
    """The number of hosts at the end of each second."""
    times = np.array([epoch.started_ms / 1000 for epoch in epochs])
    newest = np.searchsorted(times, np.arange(1, seconds + 1)) - 1
    return [float(len(epochs[at].hosts)) if at >= 0 else None for at in newest.tolist()]


def _steady(
    scenario: LiveScenario, found: Truth, epochs: Sequence[EpochProgress]
) -> list[Projected]:
    """Each stair of the load, once it has settled."""
    told = []
    rate_at = shape(scenario.load).rate_at
    for start_s in range(0, scenario.seconds, scenario.period_s):
        from_s, to_s = start_s + scenario.period_s * (1 - _SETTLED), start_s + scenario.period_s
        cost = EpochCost()
        for epoch in epochs:
            if from_s <= epoch.started_ms / 1000 < to_s:
                done_ms = epoch.started_ms + epoch.sink_ms + epoch.seal_ms
                useful_ms = max((host.useful_ms for host in epoch.hosts), default=0.0)
                cost.note(epoch.started_ms, done_ms, useful_ms)
        # Latency is counted up to the sink, and the last second's rows may not be there yet.
        mean_ms = found.mean_ms(from_s, to_s - 1)
        rate = float(rate_at(from_s)) / scenario.hosts
        told.append(projected("live", rate, scenario.host_rate, cost.ms, mean_ms))
    return told
