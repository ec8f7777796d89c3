"""What is made of a live run of a burst: its latencies by second, its loads, what it cost."""

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
"""Seconds of a load until it is stable, of which nothing is judged."""


@dataclass(frozen=True)
class BurstOutcome:
    """What a live run gave. Times are seconds from the beginning of the load, money is in dollars."""

    query: str
    side: str
    shape: str
    factor: float
    at_s: int
    """When the burst began."""
    seconds: int
    """Seconds that the burst lasts."""
    p99_peak_ms: float
    """The 99th percentile of the worst second, of rows by the second in which they were delivered,
    from the burst's begin until all of it was."""
    p99_stable_ms: float
    """The median of the seconds before the burst."""
    load_stable: float
    """The busiest host's, before the burst."""
    delivered_s: float
    """When the last row of the burst was in the sink."""
    rows: int
    function_rows: int
    """Rows that functions took and answered for."""
    invocations: int
    failures: dict[str, int]
    epochs: int
    epoch_ms: float
    """The median length before the burst."""
    by_second: dict[str, Series]
    """rate, p99_ms, load (of the busiest host), hosts and functions."""
    money: dict[str, float]
    """hosts and functions in all; stable_second, and burst_second: all beyond what stable seconds
    would have cost is the burst's."""
    told: list[dict[str, Any]]
    """When functions, hosts and slots were asked for."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class LiveRuns:
    """What came of some runs."""

    outcomes: tuple[BurstOutcome, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    """Runs that gave no figures, and why."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Runs whose rows were not right, and which; they count as failed too."""


@dataclass(frozen=True, eq=False)
class ArrivedRows:
    """Every row of a run, in the order in which rows arrived. Times are seconds of the load."""

    arrival_s: Floats
    done_s: Floats

    @staticmethod
    def of(
        arrivals: ArrivalTimes, start_ms: float, epochs: Sequence[EpochProgress], seconds: float
    ) -> ArrivedRows:
        """The rows of a load that began at this time of 1970. Its epochs have, one after the other, its rows
        in the order of arrival, and no others."""
        number = np.arange(int(arrivals.cumulative(seconds * 1000 - 1e-3)), dtype=np.int64)
        done = done_ms(delivered(epochs), number) - start_ms
        return ArrivedRows(arrivals.arrival_us(number) / 1e6, done / 1000)

    @property
    def p99_ms(self) -> Series:
        """The 99th percentile by the second in which rows were delivered; None for one in which none was.

        >>> ArrivedRows(np.array([0.1, 0.2, 0.3]), np.array([0.5, 2.2, 2.3])).p99_ms
        [400.0, None, 2000.0]
        """
        found = ~np.isnan(self.done_s)
        second = self.done_s[found].astype(np.int64)
        latency = (self.done_s - self.arrival_s)[found] * 1000
        told: Series = [None] * (int(second.max(initial=-1)) + 1)
        for at in np.unique(second).tolist():
            told[at] = round(float(np.percentile(latency[second == at], 99)), 1)
        return told

    def done_by(self, arrival_s: float) -> float:
        """When everything that had arrived by then was delivered."""
        return float(np.max(self.done_s[self.arrival_s <= arrival_s]))

    def rate(self, seconds: int) -> Series:
        """Rows that arrived in each second."""
        second = self.arrival_s.astype(np.int64)
        return [float(count) for count in np.bincount(second, minlength=seconds)]


def peak_ms(p99_ms: Series, from_s: float, to_s: float) -> float:
    """The worst of the seconds from one to another, both included.

    >>> peak_ms([900.0, 400.0, None, 700.0, 999.0], 1.0, 3.4)
    700.0
    """
    return max(p for p in p99_ms[int(from_s) : int(to_s) + 1] if p is not None)


def loads(epochs: Sequence[EpochProgress], seconds: int) -> Series:
    """The share of each second in which the busiest host worked, with an epoch's work spread evenly
    over the time until the next one."""
    starts = np.array([epoch.started_ms / 1000 for epoch in epochs])
    useful = [max((host.useful_ms for host in epoch.hosts), default=0.0) for epoch in epochs]
    total = np.concatenate([[0.0], np.cumsum(useful)[:-1]]) / 1000
    by_second = np.diff(np.interp(np.arange(seconds + 1), starts, total))
    return [round(float(load), 4) for load in by_second]


def functions_by_second(
    journal: Sequence[Entry], step: str, start_ms: float, seconds: int
) -> Series:
    """Functions that were asked for, at the end of each second."""
    told = [e for e in journal if e.event == "offload" and e.step == step]
    times = np.array([(entry.time_ms - start_ms) / 1000 for entry in told])
    counts = np.array([0.0, *(float(entry.facts["functions"]) for entry in told)])
    found: Series = counts[np.searchsorted(times, np.arange(1, seconds + 1))].tolist()
    return found


def money_of(epochs: Sequence[EpochProgress], at_s: float, for_s: float) -> dict[str, float]:
    """What a run cost from its stable seconds on, and a second of its stable time and of its burst."""
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
    """Epochs of a flow without hosts, as if its couriers, so many of such a rate, were hosts."""
    found = []
    for epoch in epochs:
        kept = epoch.rows - epoch.functions.rows + epoch.functions.returned
        each = HostProgress("courier", 0, 0, kept // couriers, 1000 * kept / couriers / rate)
        found.append(replace(epoch, hosts=(each,) * couriers))
    return found


def outcome_of(
    scenario: LiveBurst,
    step: str,
    rows: ArrivedRows,
    epochs: Sequence[EpochProgress],
    journal: Sequence[Entry],
    start_ms: int,
) -> BurstOutcome:
    """All that the report tells of a run whose load began at this time of 1970; `step` is the one
    that gets the burst."""
    until_s = scenario.at_s + scenario.for_s
    delivered_s = rows.done_by(until_s)
    length = max(scenario.seconds, int(delivered_s) + 1)
    counted = since(epochs, start_ms, length)
    of_hosts = counted if scenario.stateless else of_step(counted, step)
    p99, load = rows.p99_ms, loads(of_hosts, length)
    peak = peak_ms(p99, scenario.at_s, delivered_s)
    stable = [e for e in counted if _SETTLED_S * 1000 <= e.started_ms < scenario.at_s * 1000]
    settled = slice(_SETTLED_S, scenario.at_s)
    # Epochs may be so long that none of them is all before the burst.
    stable_ms = [p for p in p99[settled] if p is not None] or [peak]
    lengths = [epoch.sink_ms + epoch.seal_ms for epoch in stable or counted]
    functions = [epoch.functions for epoch in counted]
    failures: dict[str, int] = {}
    for one in functions:
        for why, times in one.failures.items():
            failures[why] = failures.get(why, 0) + times
    return BurstOutcome(
        query=scenario.query,
        side=scenario.side,
        shape="burst",
        factor=scenario.factor,
        at_s=scenario.at_s,
        seconds=scenario.for_s,
        p99_peak_ms=peak,
        p99_stable_ms=float(np.median(stable_ms)),
        load_stable=float(np.mean([one for one in load[settled] if one is not None])),
        delivered_s=round(delivered_s, 2),
        rows=len(rows.arrival_s),
        function_rows=sum(one.rows - one.returned for one in functions),
        invocations=sum(one.invocations for one in functions),
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
