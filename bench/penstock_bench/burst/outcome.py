"""Figures of a live burst run: latencies and loads by second, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from penstock.control.examine.vitals import Floats
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.progress import EpochProgress, HostProgress
from penstock.live.sources.rate import ArrivalTimes
from penstock_bench.burst.scenarios import LiveBurst
from penstock_bench.live.latency import delivered, done_ms
from penstock_bench.switch.outcome import hosts_by_second, of_step, since

Series = list[float | None]
_SETTLED_S = 5
"""Seconds at the start of a load that do not count, until it is stable."""


@dataclass(frozen=True)
class BurstOutcome:
    """The figures of a live run. Times are seconds from the start of the load, money is in dollars."""

    query: str
    side: str
    shape: str
    factor: float
    at_s: int
    """Start of the burst."""
    seconds: int
    """Length of the burst in seconds."""
    p99_peak_ms: float
    """The 99th percentile of the worst second, with rows counted in the second that delivered them,
    between the start of the burst and the delivery of its last row."""
    p99_stable_ms: float
    """Median of the p99 of the seconds before the burst."""
    load_stable: float
    """Load of the busiest host before the burst, from 0 to 1."""
    delivered_s: float
    """Time at which the last row of the burst was in the sink."""
    rows: int
    function_rows: int
    """Rows that functions processed."""
    invocations: int
    failures: dict[str, int]
    epochs: int
    epoch_ms: float
    """Median length of an epoch before the burst, in milliseconds."""
    by_second: dict[str, Series]
    """Values of each second: rate, p99_ms, load (of the busiest host), hosts and functions."""
    money: dict[str, float]
    """Totals of hosts and functions, and the cost of a stable_second and of a burst_second. All cost
    beyond that of stable seconds is the burst's."""
    told: list[dict[str, Any]]
    """Journal entries about functions, hosts and slots: time and text."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class LiveRuns:
    """Outcomes of live runs, and those that failed."""

    outcomes: tuple[BurstOutcome, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    """Runs without figures -> the error."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Runs with wrong rows -> the difference. They are in `failed` too."""


@dataclass(frozen=True, eq=False)
class ArrivedRows:
    """Arrival and delivery of every row of a run, in order of arrival, in seconds from the load's start."""

    arrival_s: Floats
    done_s: Floats

    @staticmethod
    def of(
        arrivals: ArrivalTimes, start_ms: float, epochs: Sequence[EpochProgress], seconds: float
    ) -> ArrivedRows:
        """The rows of a load that began at `start_ms` (Unix time). Its epochs must hold the load's rows in
        order of arrival, and no others."""
        number = np.arange(int(arrivals.cumulative(seconds * 1000 - 1e-3)), dtype=np.int64)
        done = done_ms(delivered(epochs), number) - start_ms
        return ArrivedRows(arrivals.arrival_us(number) / 1e6, done / 1000)

    @property
    def p99_ms(self) -> Series:
        """p99 latency by second of delivery, in milliseconds; None for a second without deliveries.

        >>> ArrivedRows(np.array([0.1, 0.2, 0.3]), np.array([0.5, 2.2, 2.3])).p99_ms
        [400.0, None, 2000.0]
        """
        known = ~np.isnan(self.done_s)
        second = self.done_s[known].astype(np.int64)
        latency = (self.done_s - self.arrival_s)[known] * 1000
        series: Series = [None] * (int(second.max(initial=-1)) + 1)
        for at in np.unique(second).tolist():
            series[at] = round(float(np.percentile(latency[second == at], 99)), 1)
        return series

    def done_by(self, arrival_s: float) -> float:
        """Time at which all rows that arrived by `arrival_s` were delivered."""
        return float(np.max(self.done_s[self.arrival_s <= arrival_s]))

    def rate(self, seconds: int) -> Series:
        """Rows that arrived in each second."""
        second = self.arrival_s.astype(np.int64)
        return [float(count) for count in np.bincount(second, minlength=seconds)]


def peak_ms(p99_ms: Series, from_s: float, to_s: float) -> float:
    """Highest p99 of the seconds from `from_s` to `to_s`, both included.

    >>> peak_ms([900.0, 400.0, None, 700.0, 999.0], 1.0, 3.4)
    700.0
    """
    return max(p for p in p99_ms[int(from_s) : int(to_s) + 1] if p is not None)


def loads(epochs: Sequence[EpochProgress], seconds: int) -> Series:
    """Share of each second in which the busiest host worked. An epoch's work counts as spread evenly over
    the time until the next epoch."""
    starts = np.array([epoch.started_ms / 1000 for epoch in epochs])
    useful = [max((host.useful_ms for host in epoch.hosts), default=0.0) for epoch in epochs]
    total = np.concatenate([[0.0], np.cumsum(useful)[:-1]]) / 1000
    by_second = np.diff(np.interp(np.arange(seconds + 1), starts, total))
    return [round(float(load), 4) for load in by_second]


def functions_by_second(
    journal: Sequence[Entry], step: str, start_ms: float, seconds: int
) -> Series:
    """Number of functions requested at the end of each second."""
    offloads = [e for e in journal if e.event == "offload" and e.step == step]
    times = np.array([(entry.time_ms - start_ms) / 1000 for entry in offloads])
    counts = np.array([0.0, *(float(entry.facts["functions"]) for entry in offloads)])
    series: Series = counts[np.searchsorted(times, np.arange(1, seconds + 1))].tolist()
    return series


def money_of(epochs: Sequence[EpochProgress], at_s: float, for_s: float) -> dict[str, float]:
    """Cost of a run in dollars: hosts, functions, a stable second and a second of the burst."""
    known = [epoch for epoch in epochs if epoch.money is not None]
    times = np.array([(e.started_ms + e.sink_ms + e.seal_ms) / 1000 for e in known])
    spent = [epoch.money or Money() for epoch in known]
    hosts, functions = (np.array([getattr(m, of) for m in spent]) for of in ("hosts", "functions"))
    total = hosts + functions
    before, begin = (float(np.interp(at, times, total)) for at in (_SETTLED_S, at_s))
    stable = (begin - before) / (at_s - _SETTLED_S)
    beyond = float(total[-1]) - begin - stable * (float(times[-1]) - at_s)
    return {
        "hosts": float(hosts[-1] - hosts[0]),
        "functions": float(functions[-1] - functions[0]),
        "stable_second": stable,
        "burst_second": stable + max(beyond, 0.0) / for_s,
    }


def by_couriers(epochs: Sequence[EpochProgress], couriers: int, rate: float) -> list[EpochProgress]:
    """Epochs of a flow without hosts, with its `couriers` counted as hosts of `rate` rows per second."""
    with_hosts = []
    for epoch in epochs:
        kept = epoch.rows - epoch.functions.rows + epoch.functions.returned
        each = HostProgress("courier", 0, 0, kept // couriers, 1000 * kept / couriers / rate)
        with_hosts.append(replace(epoch, hosts=(each,) * couriers))
    return with_hosts


def outcome_of(
    scenario: LiveBurst,
    step: str,
    rows: ArrivedRows,
    epochs: Sequence[EpochProgress],
    journal: Sequence[Entry],
    start_ms: int,
) -> BurstOutcome:
    """The figures of a run whose load began at `start_ms` (Unix time); `step` gets the burst."""
    until_s = scenario.at_s + scenario.for_s
    delivered_s = rows.done_by(until_s)
    length = max(scenario.seconds, int(delivered_s) + 1)
    counted = since(epochs, start_ms, length)
    of_hosts = counted if scenario.stateless else of_step(counted, step)
    p99, load = rows.p99_ms, loads(of_hosts, length)
    peak = peak_ms(p99, scenario.at_s, delivered_s)
    stable = [e for e in counted if _SETTLED_S * 1000 <= e.started_ms < scenario.at_s * 1000]
    settled = slice(_SETTLED_S, scenario.at_s)
    # Epochs may be so long that none of them ends before the burst.
    stable_ms = [p for p in p99[settled] if p is not None] or [peak]
    lengths = [epoch.sink_ms + epoch.seal_ms for epoch in stable or counted]
    functions = [epoch.functions for epoch in counted]
    failures: dict[str, int] = {}
    for usage in functions:
        for reason, count in usage.failures.items():
            failures[reason] = failures.get(reason, 0) + count
    return BurstOutcome(
        query=scenario.query,
        side=scenario.side,
        shape="burst",
        factor=scenario.factor,
        at_s=scenario.at_s,
        seconds=scenario.for_s,
        p99_peak_ms=peak,
        p99_stable_ms=float(np.median(stable_ms)),
        load_stable=float(np.mean([value for value in load[settled] if value is not None])),
        delivered_s=round(delivered_s, 2),
        rows=len(rows.arrival_s),
        function_rows=sum(usage.rows - usage.returned for usage in functions),
        invocations=sum(usage.invocations for usage in functions),
        failures=failures,
        epochs=len(counted),
        epoch_ms=float(np.median(lengths)),
        by_second={
            "rate": rows.rate(scenario.seconds),
            "p99_ms": p99,
            "load": load,
            "hosts": hosts_by_second(of_hosts, length),
            "functions": functions_by_second(journal, step, start_ms, length),
        },
        money=money_of(counted, scenario.at_s, scenario.for_s),
        told=[
            {"at_s": round((entry.time_ms - start_ms) / 1000, 2), "text": entry.text}
            for entry in journal
            if entry.event in ("offload", "began", "done", "failed") and entry.time_ms >= start_ms
        ],
        settings=asdict(scenario),
    )
