"""Made-up reports of benches. No bench is run for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from penstock_bench.burst import bench as burst
from penstock_bench.burst import params as burst_params
from penstock_bench.burst import scenarios as burst_scenarios
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.sides import SIDES, Side
from penstock_bench.chaos import bench as chaos
from penstock_bench.chaos.load import arrivals
from penstock_bench.chaos.oracle import SparkLog, difference
from penstock_bench.chaos.outcome import outcome_of
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.chaos.schedule import schedule as chaos_schedule
from penstock_bench.live import bench as live
from penstock_bench.live.arena import PEERS
from penstock_bench.live.latency import Began, Seconds
from penstock_bench.live.parts import burst as live_burst
from penstock_bench.live.parts import hotspots as live_hotspots
from penstock_bench.live.parts import latency as live_latency
from penstock_bench.live.parts import migration as live_migration
from penstock_bench.live.parts import switch as live_switch
from penstock_bench.load import bench as load
from penstock_bench.load.trial import RateTrial
from penstock_bench.migration import bench as migration
from penstock_bench.nexmark import bench as nexmark
from penstock_bench.ordered import bench as ordered
from penstock_bench.ordered import queries as ordered_queries
from penstock_bench.ordered import sweeps as ordered_sweeps
from penstock_bench.ordered.trials import Shown, Trial, summary
from penstock_bench.peers import bench as peers_bench
from penstock_bench.peers import latency as peers_latency
from penstock_bench.peers.engines import ENGINES
from penstock_bench.peers.stream import TASKS
from penstock_bench.report import PartResult, Result
from penstock_bench.soak import bench as soak
from penstock_bench.soak.samples import ROLES, FileCount, HeldResources, SoakSample
from penstock_bench.switch import bench as switch
from penstock_bench.switch import projection as switch_projection
from penstock_bench.switch import sweeps as switch_sweeps
from penstock_bench.switch.projection import projected
from penstock_bench.switch.scenarios import BALANCER
from penstock_bench.switch.simulated import Scenario
from penstock_bench.workloads.nexmark.catalog import TITLES

PEAKS_MS = dict(zip(SIDES, (60e3, 38e3, 6e3, 5e3, 12e3, 1.4e3, 1.2e3, 9e3, 4e3, 2e3), strict=True))
"""Peak latency of each side in milliseconds, in the order of `SIDES`."""


def _series(side: Side, at_s: int, seconds: int, seed: int) -> dict[str, list[float | None]]:
    """Series per second, with a latency that rises during the burst and falls after it."""
    chance, time = np.random.default_rng(seed), np.arange(at_s + 3 * seconds)
    up = np.clip((time - at_s) / (0.3 * seconds), 0, 1) * np.exp(
        -np.clip(time - at_s, 0, None) / 40
    )
    p99 = (800 + (PEAKS_MS[side] - 800) * up) * chance.uniform(0.9, 1.1, len(time))
    known: list[float | None] = p99.round(1).tolist()
    if side == "no_scaling":
        known[at_s + 3 : at_s + 9] = [None] * 6
    load = np.clip(0.65 + 0.3 * up * PEAKS_MS[side] / 60e3, 0, 1)
    helped = np.where((time > at_s + 1) & (time < at_s + seconds), 8, 0)
    return {
        "p99_ms": known,
        "load": load.tolist(),
        "hosts": np.full(len(time), 5).tolist(),
        "functions": helped.tolist(),
        "rate": np.full(len(time), 100.0).tolist(),
    }


def _simulated_burst(scenario: burst_sim.BurstScenario) -> Result:
    """A made-up result of `burst_sim.run_one`."""
    at_s, seconds = burst_params.STABLE_S, round(scenario.seconds)
    factor = scenario.factor / 5
    hosts = 5 * scenario.factor if scenario.side == "overprovisioned" else 5
    return {
        "query": scenario.query,
        "shape": scenario.shape,
        "factor": scenario.factor,
        "seconds": scenario.seconds,
        "side": scenario.side,
        "slots": scenario.slots,
        "p99_peak_ms": PEAKS_MS[scenario.side] * factor,
        **{"delivered": True, "delivered_s": 100, "rows": 10_000, "function_rows": 10},
        **{"invocations": 3, "cold_starts": 1, "most_functions": 8, "most_hosts": hosts},
        "money": {
            **{"hosts": 1.0, "functions": 0.1, "stable_second": hosts * 1.75e-5},
            "burst_second": (hosts + (30 if scenario.side == "penstock" else 0)) * 1.75e-5,
        },
        "by_second": _series(scenario.side, at_s, seconds, int(scenario.query[1:])),
    }


def _live_burst(scenario: burst_scenarios.LiveBurst) -> Result:
    """A made-up `BurstOutcome` as JSON."""
    hosts = scenario.most_hosts if scenario.side == "overprovisioned" else scenario.hosts
    return {
        "query": scenario.query,
        "side": scenario.side,
        "shape": "burst",
        "factor": scenario.factor,
        "at_s": scenario.at_s,
        "seconds": scenario.for_s,
        "p99_peak_ms": PEAKS_MS[scenario.side],
        "money": {"stable_second": hosts * 1.75e-5, "burst_second": 2 * hosts * 1.75e-5},
        "by_second": _series(scenario.side, scenario.at_s, scenario.for_s, 5),
    }


def burst_report(quick: bool = False) -> dict[str, Any]:
    """A made-up report of `burst.run`."""
    grid = [_simulated_burst(scenario) for scenario in burst_sim.grid(quick)]
    sweeps = {"factor": burst_sim.burstiness(), "slots": burst_sim.parallelism()}
    swept = {over: [_simulated_burst(one) for one in some] for over, some in sweeps.items()}
    runs = [
        _live_burst(scenario)
        for scenario in (burst_scenarios.QUICK if quick else burst_scenarios.FULL)
    ]
    unpaced = {
        f"live-unpaced-{query}": PartResult({}, {"runs": list(map(_live_burst, some)), "wrong": {}})
        for query, some in burst_scenarios.UNPACED.items()
    }
    parts = {
        "simulated": burst.simulated_result(grid, {} if quick else swept),
        "live": PartResult({}, {"runs": runs, "wrong": {}, "costs": burst.costs(runs)}),
        **unpaced,
    }
    plain = {name: part.to_plain(quick) for name, part in parts.items()}
    report: dict[str, Any] = json.loads(burst.report(plain).to_json())
    return report


LAST = 18.0
"""Seconds of a pause to move 5 GB."""
MB = {"50mb": 50.0, "500mb": 500.0, "5gb": 5_000.0}


def _moved(size: str, move: migration.AskedMove, chance: np.random.Generator) -> migration.Moved:
    """A made-up move. Lazy ones are fast; others pause in proportion to their bytes, or are a little late."""
    share = MB[size] / 5_000 * move.fraction
    stop_s = {"pause": LAST, "all_at_once": LAST * 0.7}.get(move.strategy, 0.0) * share
    late_ms = {"batched(8)": 900, "fluid": 300, "lazy(16)": 30}.get(move.strategy, 15) * share
    times = np.arange(migration.SECONDS * 100) / 100
    after = times - migration.MOVE_AT
    latency = chance.lognormal(np.log(45), 0.25, len(times)) + 40 * move.skew
    latency += np.where(after > 0, late_ms, 0) + 1000 * np.clip(stop_s - 0.8 * after, 0, stop_s) * (
        after > 0
    )
    by_second = latency.reshape(migration.SECONDS, 100)
    seconds = Seconds(
        np.percentile(by_second, 50, axis=1).tolist(),
        np.percentile(by_second, 99, axis=1).tolist(),
        [float(np.percentile(latency[: (n + 1) * 100], 99)) for n in range(migration.SECONDS)],
    )
    part = {"lazy(0)": 0.025, "lazy(16)": 0.15}.get(move.strategy, 1.0)
    return migration.Moved(
        size,
        move.strategy,
        move.fraction,
        move.skew,
        seconds,
        seconds.steady_ms(migration.MOVE_AT),
        seconds.peak_ms(migration.MOVE_AT),
        moved_keys=int(1e6 * move.fraction * part),
        moved_bytes=int(MB[size] * 1e6 * move.fraction * part),
        moved_fraction=part,
        round_trips=24,
    )


def chaos_report() -> dict[str, Any]:
    """A made-up report of `chaos.run`: epochs of half a second, with a delay of three seconds after one
    fault."""
    plan = ChaosPlan(seed=5, seconds=60)
    schedule = chaos_schedule(plan)
    start_s, load = 1000.0, arrivals(plan)
    happened = {due.number: {"at_s": start_s + due.at_s + 0.1} for due in schedule[:-2]}
    times = [start_s + 0.5 * n for n in range(1, 130) if not 20 < 0.5 * n < 23]
    ends = [50 + int(load.cumulative(1000 * (at_s - start_s) - 400)) for at_s in times]
    notes = [{"at_s": at_s, "epoch": n, "helped": 2, "late": 0} for n, at_s in enumerate(times)]
    log = SparkLog({n: (end,) for n, end in enumerate(ends)}, Began(1_000_000, 50), len(ends) - 1)
    made = outcome_of(plan, log, schedule, happened, notes, 1, [], difference({}, {}))
    report: dict[str, Any] = json.loads(chaos.report(made).to_json())
    return report


def live_results(peers: bool = True) -> dict[str, Result]:
    """Made-up results of each part of `bench live`, with or without the optional peers."""
    sides = [side for side in live_latency.SIDES if peers or side not in PEERS]
    bins: list[float | None] = [8.0 + n % 3 for n in range(60)]
    changes: dict[str, Any] = {
        change: {
            "steady_ms": 9.0,
            "peak_ms": 20.0 * (n + 1),
            "recover_s": 0.5 * (n + 1),
            "before_ms": bins,
            "after_ms": [*[None] * n, 20.0 * (n + 1), *bins[n + 1 :]],
        }
        for n, change in enumerate(("move", "kill_courier", "kill_host"))
    }
    latency: dict[str, Any] = {
        "sides": {
            side: {
                "rates": {
                    str(rate): {"p50_ms": 3.0 * 10**n, "p99_ms": 8.0 * 10**n}
                    for rate in live_latency.FULL.rates
                },
                "drained_per_s": 1e5 * (n + 1),
            }
            for n, side in enumerate(sides)
        },
        "missing": {},
        "changes": changes,
        "generated": {"live_per_s": 3e6, "micro_per_s": 2e6},
    }
    results = {
        "latency": PartResult({"keys": 10_000}, latency),
        "migration": PartResult({}, {"moves": _live_moves()}),
        "transactional": PartResult({}, {"intervals": {"1000": {"p99_ms": 1500.0}}}),
        "sla": PartResult({"sla": {"latency_ms": 50}}, _live_sla(bins)),
        "switch": PartResult({}, {"runs": [_live_switch(name) for name in _SWITCHED]}),
        "hotspots": PartResult({}, {"runs": [_live_hotspot()]}),
        "burst": PartResult(asdict(live_burst.FULL), {"runs": _live_bursts()}),
        "ordered": PartResult({}, {"chains": _live_chains()}),
    }
    return {part: one.to_plain(quick=False) for part, one in results.items()}


_SWITCHED = ("exchange", "sine", "wordcount")


def _live_moves() -> list[Result]:
    steady = [10.0 + n % 3 for n in range(40)]
    return [
        {
            "size": size,
            "strategy": strategy,
            "steady_ms": 11.0,
            "peak_ms": peak,
            "before_ms": steady,
            "after_ms": [peak, *steady],
        }
        for scale, size in ((1, "50mb"), (10, "5gb"))
        for strategy, peak in zip(
            live_migration.STRATEGIES, (*[500.0 * scale] * 4, 22.0, 25.0), strict=True
        )
    ]


def _live_sla(bins: list[float | None]) -> Result:
    result = {"success": 0.995, "success_of_all": 1.0, "p99_ms": 20.0, "by_100ms": bins}
    return {"steady": result, "through_move": result | {"success": 0.99}, "moved_at_s": 2.0}


def _live_switch(name: str) -> Result:
    (scenario,) = [one for one in live_switch.FULL if one.name == name]
    wave = [10.0 + n % 7 for n in range(60)]
    by_second = {"rate": wave, "mean_ms": wave, "p99_ms": [None, *wave[1:]], "hosts": wave}
    possible = 0.97 if name == "exchange" else None
    result = {"name": name, "success": 0.98, "possible": possible, "hosts": 3.0}
    return result | {"by_second": by_second, "settings": asdict(scenario)}


def _live_hotspot() -> Result:
    (scenario,) = live_hotspots.scenarios(quick=True)
    rows = {f"sum/{n}": [100.0 + 10 * n] * scenario.seconds for n in range(scenario.hosts)}
    result = {"name": scenario.name, "max_over_mean": [1.05, 1.1], "rows_by_host": rows}
    return result | {"settings": asdict(scenario)}


def _live_bursts() -> list[Result]:
    return [
        {
            "side": side,
            "factor": factor,
            "burst_ms": 40.0 * factor * (1 + (side == live_burst.FUNCTIONS)),
            "p99_by_second": [20.0 + n % 4 for n in range(live_burst.FULL.seconds)],
        }
        for factor in live_burst.FULL.factors
        for side in live_burst.SIDES
    ]


def _live_chains() -> list[Result]:
    return [
        {"hosts": hosts, "ordered": ordered, "p99_ms": 20.0 + ordered, "rows_per_s": 1e5 * hosts}
        for hosts in (1, 2)
        for ordered in (False, True)
    ]


def live_report(peers: bool = True) -> dict[str, Any]:
    """A made-up report of `live.run` with all parts."""
    report: dict[str, Any] = json.loads(live.report(live_results(peers)).to_json())
    return report


def peers_results(peers: bool = True) -> dict[str, Result]:
    """Made-up results of each part of `bench peers`, with or without the optional peers: in the order of the
    engines, each next side is faster by Penstock's rate."""

    def sides(task: str) -> Result:
        return {
            name: peers_bench.side_result([{"rows_per_second": 1e5 * n}])
            for n, (name, engine) in enumerate(ENGINES.items(), 1)
            if (task in engine.tasks) and (peers or not engine.package)
        }

    missing = {
        name: f"{engine.package} is not installed: make peers"
        for name, engine in ENGINES.items()
        if engine.package and not peers
    }
    results = {
        task: PartResult(asdict(peers_bench.FULL_SCALE), {"sides": sides(task), "missing": missing})
        for task in TASKS
    }
    latency = {
        name: peers_bench.side_result(
            [{"p50_ms": 2.0 * n, "p99_ms": 5.0 * n, "rate": side.rates[0]}]
        )
        for n, (name, side) in enumerate(peers_latency.SIDES.items(), 1)
    }
    results["latency"] = PartResult(
        asdict(peers_latency.FULL), {"sides": latency, "missing": missing}
    )
    return {part: one.to_plain(quick=False) for part, one in results.items()}


def peers_report(peers: bool = True) -> dict[str, Any]:
    """A made-up report of `peers.run` with all parts."""
    report: dict[str, Any] = json.loads(peers_bench.report(peers_results(peers)).to_json())
    return report


def load_searches(rounds: int = 2) -> list[load.Search]:
    """Made-up searches: Penstock holds three times the rate of Spark with its default store, the better
    one."""
    most = {"penstock": 1_500_000.0, "native_rocksdb": 400_000.0, "native_hdfs": 500_000.0}

    def trial(rate: float, limit: float) -> RateTrial:
        if rate > 1.5 * limit:
            return RateTrial(rate, 0.1, None, None, None, 0.2, grew=True)
        share = rate / limit
        success, growth_ms = (1.0, 5.0) if rate <= limit else (0.6, 400.0)
        return RateTrial(
            rate, success, 900 * share, 1400 * share, growth_ms, 1.0, grew=rate > limit
        )

    return [
        load.Search(
            query,
            side,
            limit / scale * (1 + 0.02 * number),
            tuple(trial(limit * share, limit / scale) for share in (0.3, 0.5, 0.8, 1.0, 1.7)),
        )
        for query, scale in (("sum", 1.0), ("q5", 2.0))
        for number in range(rounds)
        for side, limit in most.items()
        if number == 0 or side != "native_rocksdb"
    ]


def load_report() -> dict[str, Any]:
    """A made-up report of `load.run`."""
    report: dict[str, Any] = json.loads(load.report(load_searches(), load.FULL).to_json())
    return report


def soak_samples(leak_mb: float = 0.0) -> list[SoakSample]:
    """Made-up samples, one every ten seconds over half an hour; hosts leak `leak_mb` from one to the next."""
    chance = np.random.default_rng(3)
    return [
        SoakSample(
            at_s=10.0 * n,
            roles={
                role: HeldResources(100 + leak_mb * n + chance.normal(), 40, 12) for role in ROLES
            },
            hosts=4 + n // 30 % 2,
            heap_mb=80 + chance.normal(),
            checkpoint=FileCount(200 + 8 * (n % 5), 5 + 0.6 * (n % 5)),
            sink_entries=n * 30,
            epochs=n * 30,
            p99_ms=None if n == 0 else 300 + 20 * chance.normal(),
        )
        for n in range(181)
    ]


def soak_report() -> dict[str, Any]:
    """A made-up report of `soak.run`."""
    report: dict[str, Any] = json.loads(soak.report(soak_samples(), 1800).to_json())
    return report


def migration_report(scale: migration.MigrationScale) -> dict[str, Any]:
    """A made-up report of `migration.run` at this scale."""
    chance = np.random.default_rng(7)
    moves = [_moved(size, move, chance) for size in scale.sizes for move in scale.moves()]
    kills = [
        migration.Killed(size, float(chance.normal(900, 60)), 2, 950.0, 60.0)
        for size in scale.sizes
        for _ in range(scale.kills)
    ]
    return {
        "bench": "migration",
        "settings": {"move_at": migration.MOVE_AT, "seconds": migration.SECONDS},
        "results": {
            "moves": [asdict(one) for one in moves],
            "recoveries": [asdict(one) for one in kills],
        },
    }


def _shown(trial: Trial, chance: np.random.Generator) -> Shown:
    """A made-up throughput: nearly linear in the workers, and half as high with a partitioned queue."""
    rate = 200.0 * trial.workers**0.9 * (0.5 if trial.queue == "partitioned" else 1.0)
    rate *= chance.uniform(0.9, 1.0)
    return Shown(rate, 5e3 / rate, 9e3 / rate)


def ordered_report(scale: ordered_sweeps.OrderedScale) -> dict[str, Any]:
    """A made-up report of `ordered.run` at this scale."""
    chance = np.random.default_rng(5)
    groups: dict[str, list[Any]] = {}
    for trial in ordered_sweeps.trials(scale):
        rounds = [_shown(trial, chance) for _ in range(scale.rounds)]
        groups.setdefault(trial.group, []).append(summary(trial, rounds))
    for group, sides in {
        "hosts": ordered_sweeps.host_sides(scale),
        "cores": [(1, "ct"), (2, "ct")],
    }.items():
        groups[group] = [
            {
                **{"query": query, "workers": workers, "schedule": schedule},
                "records_per_s": (1e3 * workers * chance.uniform(0.9, 1.0, scale.rounds)).tolist(),
            }
            for query in ordered_queries.QUERIES
            for workers, schedule in sides
        ]
    results: dict[str, Any] = json.loads(ordered.report(groups).to_json())
    return results


_SWITCH_SECONDS = 90


def _result(scenario: Scenario, chance: np.random.Generator) -> Result:
    """A made-up result of `run_one`: more hosts give more success."""
    hosts = float(scenario.hosts or chance.uniform(4, 16))
    by_slot = 1 - chance.exponential(0.2 / hosts, 64).clip(0, 0.3)
    success = float(by_slot.mean())
    result: Result = {
        "policy": scenario.policy,
        "latency_ms": scenario.sla.latency_ms,
        "window_ms": scenario.sla.window_ms,
        "seed": scenario.seed,
        **dict(scenario.facts),
        "success": success,
        "hosts": hosts,
        "treatments": {"scale_out": 20, "scale_in": 18, "balance": int(chance.integers(1, 60))},
        "events": int(chance.integers(30, 60)),
        "switching_s": float(chance.uniform(10, 90)),
        "other_share": float(chance.uniform(0.1, 0.9)) if scenario.keep_kinds else None,
        "steps": {name: {"success": success} for name in ("split", "count")},
    }
    if scenario.keep_slots:
        result["by_slot"] = by_slot.tolist()
    if scenario.timeline_s:
        result["timeline"] = {
            "every_s": scenario.timeline_s,
            "rate": chance.uniform(300, 9_000, _SWITCH_SECONDS).tolist(),
            "hosts": chance.integers(3, 12, _SWITCH_SECONDS).astype(float).tolist(),
            "mean_ms": [None, *chance.uniform(1, 400, _SWITCH_SECONDS - 1).tolist()],
            "p99_ms": [None, *chance.uniform(20, 4_000, _SWITCH_SECONDS - 1).tolist()],
            "balanced_s": [5.0, 40.0],
        }
    if scenario.keep_loads:
        result["loads"] = chance.uniform(400, 1_500, (3, _SWITCH_SECONDS)).tolist()
    return result


def _live(name: str, policy: str | None, uneven: tuple[float, ...] = ()) -> Result:
    chance = np.random.default_rng(3)
    series = {
        of: chance.uniform(100, 900, _SWITCH_SECONDS).tolist()
        for of in ("rate", "hosts", "mean_ms")
    }
    return {
        "name": name,
        "policy": policy,
        "success": 0.98,
        "hosts": 3.5,
        "max_over_mean": list(uneven),
        "by_second": series | {"p99_ms": [None, *series["mean_ms"][1:]]},
        "settings": {"warm_up_s": 10, "sla": {"latency_ms": 1000, "window_ms": 1000}},
    }


def switch_report(scale: switch_sweeps.SwitchScale) -> dict[str, Any]:
    """A made-up report of `switch.run` at this scale."""
    chance = np.random.default_rng(7)
    groups: switch.Groups = {}
    for scenario in switch_sweeps.scenarios(scale):
        groups.setdefault(scenario.group, []).append(_result(scenario, chance))
    loads = [
        projected(engine, rate, 1000.0, cost_ms, 1.4 * cost_ms + 2)
        for engine, cost_ms in (("continuous", 0.0), ("epochs", 250.0), ("live", 210.0))
        for rate in (200.0, 500.0, 800.0)
    ]
    simulated = [load for load in loads if load.engine != "live"]
    live = {
        "live": [
            _live("burst", "switch"),
            _live("sine", "switch"),
            _live("hotspot 50% on 3", BALANCER, (1.02, 1.1)),
            _live("hotspot 50% on 3", "switch", (1.12, 1.04)),
            _live("steady", None),
        ],
        "live-exchange": [_live("exchange", "switch") | {"possible": 0.95}] * 3,
        "live-nexmark": [_live("nexmark", "switch")] * 3,
        "live-unpaced-nexmark": [_live("q5, unpaced", "switch")],
    }
    parts = {
        "simulated": switch.simulated_result(groups, simulated, scale),
        **{name: PartResult({}, {"runs": runs}) for name, runs in live.items()},
    }
    parts["live"].results["projections"] = switch_projection.summary(
        [load for load in loads if load.engine == "live"]
    )
    plain = {name: part.to_plain(quick=False) for name, part in parts.items()}
    report: dict[str, Any] = json.loads(switch.report(plain).to_json())
    return report


def nexmark_report() -> dict[str, Any]:
    """A made-up report of `nexmark.run`, with rates over three decades."""
    chance = np.random.default_rng(7)
    results = {}
    for name in TITLES:
        speed = chance.lognormal(12, 1)
        rates = {"penstock": [speed, speed * 1.1, speed * 0.9]}
        if name not in ("q4", "q6"):
            rates["native"] = [speed / 2, speed / 4, speed / 3]
            rates["native_hdfs"] = [speed, speed / 2.2, speed / 9]
        results[name] = {"native_refused": None, **nexmark.compared(rates)}
    return {"bench": "nexmark", "results": results, "settings": {}}
