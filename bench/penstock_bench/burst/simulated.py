"""Simulated runs of `penstock bench burst`: every query, burst and side, by two processes.

    [{'query': 'q5', 'shape': 'burst', 'factor': 5, 'seconds': 60, 'side': 'penstock',
      'p99_peak_ms': ..., 'rows': ..., 'money': {...}, 'by_second': {'p99_ms': [...], ...}}, ...]

The control code is that of a live flow; the data plane is simulated, with the figures of `burst.params`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from multiprocessing import get_context

import numpy as np

from penstock.control.money import FunctionPrice, HostPrice
from penstock.control.treat.decision import Bounds
from penstock.sim.outcome import Outcome
from penstock.sim.run import simulate, simulate_flow
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock.sim.trace import Trace
from penstock.sim.workload import shaped
from penstock_bench.burst import params
from penstock_bench.burst.params import MIGRATING, hosts_of, join_of, machines, policy_of
from penstock_bench.burst.sides import LIVE, SIDES, Side
from penstock_bench.report import Result, Show

PROCESSES = 2
KEPT_S = 300
"""Seconds of a run that `by_second` keeps. Later seconds only count for the peak."""
_AFTER_S = 60.0
"""Seconds that a run continues after its burst; longer if not all rows are delivered by then."""
_LONGEST_S = 4000.0
_USUAL = ("burst", params.USUAL_FACTOR, params.USUAL_S)
_TEXTS = {"burst": "burst", "sine": "swell", "gradual": "gradual"}


@dataclass(frozen=True)
class BurstScenario:
    """One simulated run.

    >>> str(BurstScenario("q5", "penstock"))
    'q5, burst of 5 for 60 s: penstock'
    """

    query: str
    side: Side
    shape: str = "burst"
    """burst, sine or gradual."""
    factor: float = params.USUAL_FACTOR
    seconds: float = params.USUAL_S
    slots: int = params.SLOTS
    """Slots of a step (tasks, in Sponge)."""
    seed: int = 1

    @property
    def load(self) -> str:
        """The load in the notation of `penstock.sim.shapes`.

        >>> BurstScenario("q7", "penstock", "sine").load
        'swell(15000, 5, 20s, 60s)'
        """
        rate = params.QUERIES[self.query].rate
        times = f"{params.STABLE_S}s, {self.seconds:g}s"
        return f"{_TEXTS[self.shape]}({rate:.0f}, {self.factor:g}, {times})"

    def trace(self, seconds: float) -> Trace:
        """Poisson arrivals from the seed. The last trace is cached, since sides share it."""
        return _trace(self.load, self.slots, seconds, self.seed)

    def __str__(self) -> str:
        burst = f"{self.shape} of {self.factor:g} for {self.seconds:g} s"
        return f"{self.query}, {burst}: {self.side}"


@lru_cache(maxsize=1)
def _trace(load: str, slots: int, seconds: float, seed: int) -> Trace:
    return shaped(shape(load), skew("uniform"), slots, 100.0, seconds, seed)


def grid(quick: bool = False) -> list[BurstScenario]:
    """All queries, shapes and sides; a few when quick.

    Sides that are only simulated show Penstock's mechanisms one by one; they run with the usual burst.
    """
    if quick:
        sides: Iterable[Side] = (
            "new_hosts_30s",
            "functions_migrating",
            "penstock",
            "overprovisioned",
        )
        return [BurstScenario(q, side, seconds=30) for q in ("q4", "q7") for side in sides]
    bursts = [("burst", f, s) for f in params.FACTORS for s in params.LENGTHS_S]
    others = [(s, params.USUAL_FACTOR, params.USUAL_S) for s in ("sine", "gradual")]
    return [
        BurstScenario(query, side, name, factor, seconds)
        for query in params.QUERIES
        for name, factor, seconds in (*bursts, *others)
        for side in (SIDES if (name, factor, seconds) == _USUAL else LIVE)
    ]


def burstiness() -> list[BurstScenario]:
    """Scenarios of Sponge's figure 14a: q4, bursts from 3 to 6 times."""
    sides: tuple[Side, ...] = ("functions_migrating", "routers", "penstock")
    return [BurstScenario("q4", side, factor=factor) for factor in (3, 4, 5, 6) for side in sides]


def parallelism() -> list[BurstScenario]:
    """Scenarios of Sponge's figure 14b: q4 with fewer and more slots."""
    sides: tuple[Side, ...] = ("routers", "routers_transients", "penstock")
    return [BurstScenario("q4", side, slots=n) for n in (50, 60, 70, 140, 420) for side in sides]


def simulated(show: Show, quick: bool = False) -> list[Result]:
    """Run the whole grid: about five minutes, or a few seconds when quick."""
    return run_all(grid(quick), show)


def run_all(scenarios: Sequence[BurstScenario], show: Show) -> list[Result]:
    """Run scenarios in two processes; return results in their order. Scenarios of one load run together."""
    began, done = time.monotonic(), 0
    loads = [list(same) for _, same in groupby(scenarios, lambda s: (s.load, s.slots, s.seed))]
    results: dict[int, list[Result]] = {}
    # Spawned, so that a worker does not inherit this process's threads.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_run_several, same): n for n, same in enumerate(loads)}
        try:
            for future in as_completed(running):
                n = running[future]
                results[n], done = future.result(), done + len(loads[n])
                show(f"{done}/{len(scenarios)} {_line(loads[n][0], results[n])}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    show(f"simulated {len(scenarios)} runs in {time.monotonic() - began:.0f} s")
    return [result for n in range(len(loads)) for result in results[n]]


def _run_several(scenarios: Sequence[BurstScenario]) -> list[Result]:
    return [run_one(scenario) for scenario in scenarios]


def run_one(scenario: BurstScenario) -> Result:
    """Run a scenario in this process until its burst is delivered.

    >>> result = run_one(BurstScenario("q7", "overprovisioned", factor=3, seconds=10))
    >>> 300 < result["p99_peak_ms"] < 1000, result["delivered"], result["money"]["functions"]
    (True, True, 0.0)
    """
    began, end_s = time.process_time(), params.STABLE_S + scenario.seconds
    seconds = end_s + _AFTER_S
    while True:
        first, join = _steps(scenario, seconds)
        delivered_s = _delivered(first, end_s)
        if delivered_s is not None or seconds >= _LONGEST_S:
            break
        seconds = min(4 * seconds, _LONGEST_S)
    result = {
        "query": scenario.query,
        "shape": scenario.shape,
        "factor": scenario.factor,
        "seconds": scenario.seconds,
        "side": scenario.side,
        "slots": scenario.slots,
        "seed": scenario.seed,
        "delivered": delivered_s is not None,
    }
    result |= _figures(scenario, first, join, delivered_s or math.ceil(seconds))
    return result | {"cpu_s": round(time.process_time() - began, 2)}


def _steps(scenario: BurstScenario, seconds: float) -> tuple[Outcome, Outcome | None]:
    """Outcomes of the busy step and of the join after it, if there is one."""
    query, side = params.QUERIES[scenario.query], scenario.side
    hosts = hosts_of(side, scenario.factor)
    most = params.HOSTS + params.FUNCTIONS
    bounds = Bounds(params.BOUND, at_least=hosts, at_most=max(most, hosts))
    plane, policy = machines(query, side, scenario.slots), policy_of(side, hosts)
    trace = scenario.trace(seconds)
    if not query.joined:
        outcome = simulate(trace, policy, bounds, plane, hosts=hosts, delta_ms=100.0)
        return outcome, None
    join = join_of(query, side, scenario.slots, hosts)
    flow = simulate_flow(trace, [join], policy, bounds, plane, hosts=hosts, delta_ms=100.0)
    first, second = flow.steps.values()
    return first, second


def _delivered(outcome: Outcome, end_s: float) -> int | None:
    """The second by which all rows up to the burst's end are delivered; None if not in this run."""
    series = outcome.series
    wanted = series.rate[: math.ceil(end_s)].sum()
    by_then = np.flatnonzero(np.cumsum(series.completed) >= wanted - 0.5)
    return int(by_then[0]) + 1 if len(by_then) else None


def _figures(
    scenario: BurstScenario, first: Outcome, join: Outcome | None, delivered_s: int
) -> Result:
    series, side = first.series, scenario.side
    # Steps take turns, so one core serves a host of each step.
    hosts = series.hosts if join is None else np.maximum(series.hosts, join.series.hosts)
    if side == "hosts_beforehand":
        hosts = np.maximum(hosts, hosts_of("overprovisioned", scenario.factor))
    functions, function_money = series.workers, series.worker_money
    if side in MIGRATING:
        # Hosts beyond the first ones stand for functions, paid for while they own slots.
        functions = hosts - params.HOSTS
        function_money = FunctionPrice().per_hour / 3600 * functions
        hosts = np.full(len(hosts), float(params.HOSTS))
    host_money = HostPrice().money(1.0) * hosts
    busiest = series.load if join is None else np.maximum(series.load, join.series.load)
    peak = np.nanmax(series.p99_ms[params.STABLE_S : delivered_s])
    burst = slice(params.STABLE_S, math.ceil(params.STABLE_S + scenario.seconds))
    kept, used = slice(0, KEPT_S), first.used
    return {
        "p99_peak_ms": round(float(peak), 1),
        "delivered_s": delivered_s,
        "rows": first.arrived,
        "function_rows": first.worker_rows,
        "invocations": 0 if used is None else used.invocations,
        "cold_starts": 0 if used is None else used.cold_starts,
        "most_functions": int(functions.max(initial=0)),
        "most_hosts": int(hosts.max()),
        "treatments": sum(first.treatments.values()),
        "money": {
            "hosts": round(float(host_money[:delivered_s].sum()), 6),
            "functions": round(float(function_money[:delivered_s].sum()), 6),
            "stable_second": float(host_money[params.STABLE_S - 1]),
            "burst_second": float((host_money + function_money)[burst].mean()),
        },
        "by_second": {
            "p99_ms": [None if x != x else round(x) for x in series.p99_ms[kept].tolist()],
            "load": busiest[kept].round(3).tolist(),
            "hosts": hosts[kept].astype(int).tolist(),
            "functions": functions[kept].astype(int).tolist(),
            "function_money": function_money[kept].round(8).tolist(),
        },
    }


def _line(scenario: BurstScenario, results: Sequence[Result]) -> str:
    peaks = ", ".join(f"{run['side']} {run['p99_peak_ms'] / 1000:.2f}" for run in results)
    return f"{str(scenario).rpartition(':')[0]}: peak p99 in seconds: {peaks}"
