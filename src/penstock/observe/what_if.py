"""What if: the recorded load of a run, simulated again under another policy or SLA.

The newest hour of a recording, or less of one with short epochs, is replayed in the simulator with the load
that each slot had in each second.
Hosts are as fast as they were, and start as slowly. It is simulated twice: as it was, which shows how far the
simulator can be trusted, and with the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock import codec
from penstock.control.examine.success import FlowMeter
from penstock.errors import SettingError
from penstock.model import SLA, LatencyBound
from penstock.observe.moment import Moment
from penstock.observe.recorded_load import RecordedLoad
from penstock.observe.recording import Recording
from penstock.sim.outcome import Outcome
from penstock.state.arrays import Array

Column = tuple[float | None, ...]
"""A figure for each second; None where it is not known."""


@dataclass(frozen=True)
class BoundVersion(LatencyBound):
    """One bound of the SLA in a version."""

    success: float | None = None
    """Share of its windows in which it was kept; None if none ended, or if its figure is not known."""


@dataclass(frozen=True)
class Version:
    """One version of the same time: as recorded, or simulated."""

    policy: str
    """Scaling policy. "static(n)" if autoscaling was off."""
    latency_ms: int
    """First bound of the SLA, in milliseconds: on the average, or on the figure of `bounds[0]`."""
    window_ms: int
    """Its window, in milliseconds."""
    success: float | None
    """Share of its windows in which it was kept; None if no window ended."""
    mean_ms: float | None
    """Average latency of all rows, in milliseconds; None if none came out."""
    hosts: float
    """Number of hosts, on average over time."""
    most_hosts: int
    treatments: dict[str, int]
    """Number of treatments by kind: scale_out, scale_in, balance."""
    money: float
    """Cost in US dollars."""
    hosts_by_second: Column
    latency_by_second: Column
    """Average latency in milliseconds."""
    p99_by_second: Column
    """99th percentile of latency in milliseconds."""
    bounds: tuple[BoundVersion, ...]
    """All bounds of the SLA, each judged by its own figure."""


@dataclass(frozen=True)
class WhatIf:
    """The same time in three versions, with their figures for each second side by side."""

    time_ms: tuple[float, ...]
    """End of each second, in milliseconds since 1970."""
    rate_by_second: Column
    """Records per second that arrived at the first keyed step."""
    recorded: Version
    as_it_was: Version | None
    """Simulated with the recorded policy and SLA; None if the policy is the user's own object."""
    what_if: Version
    """Simulated with the changes."""
    assumed: tuple[str, ...]
    """What the simulation took from the recording, or left out, as sentences."""

    def as_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        plain: dict[str, Any] = codec.to_plain(self)
        return plain


def what_if(
    recording: Recording,
    *,
    policy: str | None = None,
    latency: str | float | None = None,
    window: str | float | None = None,
    margin: float | None = None,
    at_most: int | None = None,
) -> WhatIf:
    """Simulate the recorded load with another policy, SLA, margin or maximum number of hosts per step.
    `latency` and `window` change the first bound of the SLA; the others stay as they were.

    None means as it was at the end of the recording. Durations are text with a unit, or seconds. Raises
    `SettingError` if a change is invalid, or if the recording has nothing to simulate.
    """
    load = RecordedLoad.of(recording)
    was, sla = load.sla(None, None), load.sla(latency, window)
    if sla is None:
        raise SettingError(
            "the recorded query has no SLA to judge by", hint="name one, such as latency 1s"
        )
    was = was or sla
    before = load.policies
    chosen = before if policy is None else [policy] * len(load.steps)
    if chosen is None:
        raise SettingError(
            f"the recorded policy {load.policy} is an object of the user's own, which is not recorded",
            hint="name a policy to try, such as switch or ds2",
        )
    changed = {"margin": margin, "at_most": at_most}
    changes = {name: value for name, value in changed.items() if value is not None}
    then = _simulated(chosen, sla, load.simulated(chosen, sla, changes), load.tail)
    return WhatIf(
        time_ms=tuple(load.ends_ms.tolist()),
        rate_by_second=_column(load.steps[0].rates.sum(axis=1)),
        recorded=_recorded(before or [str(load.policy)], was, load),
        as_it_was=_simulated(before, was, load.simulated(before, was, {}), load.tail)
        if before
        else None,
        what_if=then,
        assumed=load.assumed(),
    )


def _recorded(policies: Sequence[str], sla: SLA, load: RecordedLoad) -> Version:
    """The figures of the recording."""
    moments, recording = load.moments, load.recording
    latency, p99 = (
        np.array([np.nan if m.latency is None else getattr(m.latency, name) for m in moments])
        for name in ("mean_ms", "p99_ms")
    )
    rows, hosts = (np.array([getattr(m, name) for m in moments]) for name in ("rows", "hosts"))
    spent = [moment.money.total for moment in moments if moment.money is not None]
    kinds = Counter(
        one["kind"]
        for entry in recording.entries(load.ends_ms[0] - 1000)
        if entry.event == "began"
        for one in entry.facts.get("treatments", ())
    )
    price = recording.facts.host_price
    return _version(
        *(policies, sla, hosts, latency, p99, rows),
        successes=[_recorded_success(bound, load.distinct) for bound in sla.bounds],
        treatments=kinds,
        money=spent[-1] - spent[0] if spent else price.money(float(hosts.sum())),
    )


def _recorded_success(bound: LatencyBound, moments: Sequence[Moment]) -> float | None:
    """How often a bound was kept, if the recorded query had one of its kind."""
    same = [b for m in moments for b in m.all_bounds if (b.p99, b.step) == (bound.p99, bound.step)]
    windows = sum(b.windows for b in same)
    return sum(b.kept for b in same) / windows if windows else None


def _simulated(
    policies: Sequence[str], sla: SLA, outcomes: Sequence[Outcome], tail: float
) -> Version:
    """The figures of a simulation. Rows have come out when the last step has completed them."""
    last = outcomes[-1].series
    hosts = np.sum([outcome.series.hosts for outcome in outcomes], axis=0)
    return _version(
        *(policies, sla, hosts, last.mean_ms, last.p99_ms, last.completed),
        successes=[_success(bound, *_figure(bound, outcomes, tail)) for bound in sla.bounds],
        treatments=sum((Counter(o.treatments) for o in outcomes), Counter[str]()),
        money=sum(outcome.money.total for outcome in outcomes),
    )


def _version(
    policies: Sequence[str],
    sla: SLA,
    hosts: Array,
    latency: Array,
    p99: Array,
    rows: Array,
    *,
    successes: Sequence[float | None],
    treatments: Counter[str],
    money: float,
) -> Version:
    weights = np.where(np.isnan(latency), 0.0, rows)
    some = bool(weights.sum() > 0)
    mean_ms = float(np.average(np.nan_to_num(latency), weights=weights)) if some else None
    rounded = [None if success is None else round(success, 4) for success in successes]
    return Version(
        policy=", ".join(dict.fromkeys(policies)),
        latency_ms=sla.latency_ms,
        window_ms=sla.window_ms,
        success=rounded[0],
        mean_ms=None if mean_ms is None else round(mean_ms, 1),
        hosts=round(float(np.mean(hosts)), 3),
        most_hosts=int(np.max(hosts)),
        treatments={kind: treatments[kind] for kind in ("scale_out", "scale_in", "balance")},
        money=round(money, 6),
        hosts_by_second=_column(hosts),
        latency_by_second=_column(latency),
        p99_by_second=_column(p99),
        bounds=tuple(
            BoundVersion(**asdict(bound), success=success)
            for bound, success in zip(sla.bounds, rounded, strict=True)
        ),
    )


def _figure(bound: LatencyBound, outcomes: Sequence[Outcome], tail: float) -> tuple[Array, Array]:
    """The simulated figure that a bound is on in each second, and the rows.

    The simulator has latencies up to and with each step. The average of a later step alone is the difference
    of two averages, and its 99th percentile `tail` times that.
    """
    names = [outcome.step for outcome in outcomes]
    at = len(outcomes) - 1 if bound.step is None else names.index(bound.step)
    series = outcomes[at].series
    if bound.step is None or at == 0:
        return series.p99_ms if bound.p99 else series.mean_ms, series.completed
    own_ms = np.maximum(series.mean_ms - outcomes[at - 1].series.mean_ms, 0.0)
    return own_ms * (tail if bound.p99 else 1.0), series.completed


def _success(bound: LatencyBound, latency: Array, rows: Array) -> float | None:
    """Share of the windows that were kept, judged like those of a running query."""
    meter = FlowMeter(bound)
    for second, (reached_ms, count) in enumerate(zip(latency, rows, strict=True), start=1):
        if count > 0 and not np.isnan(reached_ms):
            meter.take(1000.0 * second, round(count), float(reached_ms))
    return meter.kept / meter.windows if meter.windows else None


def _column(figures: Array) -> Column:
    return tuple(None if np.isnan(x) else round(float(x), 1) for x in figures.tolist())
