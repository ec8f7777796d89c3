"""Simulated runs of `penstock bench switch`: scenarios as values, run by two processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from penstock.control.treat.decision import Bounds
from penstock.model import SLA
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Following, Plane
from penstock.sim.run import simulate, simulate_flow
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock.sim.trace import Trace
from penstock.sim.workload import shaped
from penstock_bench.report import Result, Show
from penstock_bench.switch.story import by_seconds, host_loads, other_share, switching_s, timeline
from penstock_bench.workloads.exchange.trace import slot_trace

ONE_SECOND = SLA(1000, 1000)
PROCESSES = 2


@dataclass(frozen=True)
class SimulatedLoad:
    """The arrivals of a run: the sum of all parts, or a day at the exchange if there are none.

    >>> calm, spike = ("steady(100)", "uniform"), ("steps(0 for 10s, 50 for 10s)", "hotspot(1, 3)")
    >>> SimulatedLoad(20.0, (calm, spike), slots=9).trace().rates(10_000).round(-1).tolist()
    [100.0, 150.0]
    """

    seconds: float
    parts: tuple[tuple[str, str], ...] = ()
    """Pairs of a shape over time and a skew over slots."""
    slots: int = 64
    delta_ms: float = 100.0
    seed: int = 1

    def trace(self) -> Trace:
        """Poisson arrivals from the seed. The last two traces are cached."""
        return _trace(self)


@lru_cache(maxsize=2)
def _trace(load: SimulatedLoad) -> Trace:
    if not load.parts:
        day = Trace(load.delta_ms, slot_trace(load.slots, round(load.delta_ms), load.seed))
        return day.cut(to_s=load.seconds)
    counts = [
        shaped(
            shape(rate), skew(over), load.slots, load.delta_ms, load.seconds, load.seed + number
        ).counts
        for number, (rate, over) in enumerate(load.parts)
    ]
    return Trace(load.delta_ms, np.sum(counts, axis=0, dtype=np.int32))


@dataclass(frozen=True)
class Scenario:
    """One simulated run, and the figures to keep of it."""

    group: str
    """Runs that are shown together."""
    policy: str
    load: SimulatedLoad
    plane: Plane
    sla: SLA = ONE_SECOND
    alert_ms: float = 100.0
    """Milliseconds of latency that raise an alert: StreamSwitch's default, as is `delta_ms`."""
    delta_ms: float = 100.0
    hosts: int | None = None
    at_least: int = 1
    at_most: int = 64
    warm_up_s: float = 0.0
    following: tuple[Following, ...] = ()
    shares: tuple[float, ...] | None = None
    """Each step's share of the end-to-end bound, if there are several steps; None if shares may change."""
    facts: tuple[tuple[str, Any], ...] = ()
    """Further names and values for the result, by which pictures group runs."""
    keep_slots: bool = False
    """Whether to keep the success of each slot."""
    timeline_s: int = 0
    """Seconds per value of the timeline of latencies and hosts; 0 keeps none."""
    keep_loads: bool = False
    """Whether to keep each host's records per second; for steps that never scale."""
    keep_kinds: bool = False
    """Whether to keep the share of hosts of the other kind."""
    seed: int = 1

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.sla, self.alert_ms, at_least=self.at_least, at_most=self.at_most)

    def __str__(self) -> str:
        facts = [f"{name} {value}" for name, value in self.facts]
        return f"{self.group}: " + ", ".join([self.policy, *facts, f"seed {self.seed}"])


def run_one(scenario: Scenario) -> Result:
    """Run a scenario in this process.

    >>> load = SimulatedLoad(60.0, (("steady(1000)", "uniform"),), slots=8)
    >>> result = run_one(Scenario("steady", "static(2)", load, Plane(service_rate=1000.0)))
    >>> result["policy"], result["success"], result["hosts"]
    ('static(2)', 1.0, 2.0)
    """
    began = time.process_time()
    result = {
        "policy": scenario.policy,
        "latency_ms": scenario.sla.latency_ms,
        "window_ms": scenario.sla.window_ms,
        "seed": scenario.seed,
        **dict(scenario.facts),
    }
    result |= _flow(scenario) if scenario.following else _step(scenario)
    return result | {"cpu_s": round(time.process_time() - began, 2)}


def _step(scenario: Scenario) -> Result:
    trace = scenario.load.trace()
    outcome = simulate(
        trace,
        scenario.policy,
        scenario.bounds,
        scenario.plane,
        hosts=scenario.hosts,
        delta_ms=scenario.delta_ms,
        seed=scenario.seed,
        warm_up_ms=scenario.warm_up_s * 1000,
    )
    return _figures(scenario, outcome)


def _figures(scenario: Scenario, outcome: Outcome) -> Result:
    from_s, seconds = scenario.warm_up_s, scenario.load.seconds
    figures = outcome.figures()
    figures["switching_s"] = round(switching_s(outcome.journal, from_s), 2)
    figures["events"] = sum(
        len(entry.facts["treatments"])
        for entry in outcome.journal
        if entry.event == "began" and entry.time_ms >= from_s * 1000
    )
    if scenario.keep_slots:
        figures["by_slot"] = [round(success, 5) for success in outcome.success_by_slot.tolist()]
    if scenario.timeline_s:
        figures["timeline"] = timeline(outcome.series, outcome.journal, scenario.timeline_s)
    if scenario.keep_loads:
        trace, hosts = scenario.load.trace(), round(outcome.series.hosts[0])
        figures["loads"] = by_seconds(host_loads(trace, hosts, outcome.journal))
    if scenario.keep_kinds:
        mixed = scenario.plane.service_rate * scenario.plane.alpha
        figures["other_share"] = other_share(
            outcome.journal, mixed, scenario.plane.service_rate, from_s, seconds
        )
    return figures


def _flow(scenario: Scenario) -> Result:
    outcome = simulate_flow(
        scenario.load.trace(),
        scenario.following,
        scenario.policy,
        scenario.bounds,
        scenario.plane,
        step="split",
        hosts=scenario.hosts,
        shares=scenario.shares,
        delta_ms=scenario.delta_ms,
        seed=scenario.seed,
        warm_up_ms=scenario.warm_up_s * 1000,
    )
    return outcome.figures()


def run_all(scenarios: Sequence[Scenario], show: Show) -> dict[str, list[Result]]:
    """Run scenarios in two processes; return results by group, in the order of the scenarios."""
    results: dict[Scenario, Result] = {}
    began = time.monotonic()
    # Spawned, so that a worker does not inherit this process's threads.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_one, scenario): scenario for scenario in scenarios}
        try:
            for done in as_completed(running):
                scenario = running[done]
                results[scenario] = done.result()
                show(f"{len(results)}/{len(scenarios)} {_line(scenario, results[scenario])}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    show(f"simulated {len(scenarios)} runs in {time.monotonic() - began:.0f} s")
    groups: dict[str, list[Result]] = {}
    for scenario in scenarios:
        groups.setdefault(scenario.group, []).append(results[scenario])
    return groups


def _line(scenario: Scenario, result: Result) -> str:
    return (
        f"{scenario}: success {result['success']:.2%}, {result['hosts']:.2f} hosts "
        f"({result['cpu_s']:.1f} s)"
    )
