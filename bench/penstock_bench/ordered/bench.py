"""`penstock bench ordered`: ordered execution on many cores, and its overhead.

Chains of operators run on the runtime of a host. Schedules, queues and reorderings are compared on
the five queries of TPCx-BB and on single operators: under skew, by cost, for light operators, and for
operators with many outputs. Operators sleep for their cost, so that sixteen workers make sense on two
cores; the part "real" runs the queries as they are. Sides take turns, a second each, and every ratio is
the median of its rounds. The overhead of order is measured three times: for a whole flow on Spark, for
couriers and hosts without Spark, and for chains on the runtime alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.errors import SettingError
from penstock.settings import AUTO
from penstock_bench.ordered import flow as ordered_flow
from penstock_bench.ordered import limit as ordered_limit
from penstock_bench.ordered import queries as ordered_queries
from penstock_bench.ordered import spark as ordered_spark
from penstock_bench.ordered import sweeps as ordered_sweeps
from penstock_bench.ordered.queries import Workers
from penstock_bench.ordered.sweeps import HOT, OrderedScale
from penstock_bench.ordered.trials import PARTS as CHAIN_PARTS
from penstock_bench.ordered.trials import best, over, run_all
from penstock_bench.report import Goal, Report, Result, Sample, Show, having

GOALS = {
    "hybrid_over_partitioned_sigma_0.1": Goal(at_least=2.0),
    "latency_partitioned_over_hybrid_1000us": Goal(at_least=5),
    "nonblocking_over_lock_light": Goal(at_least=1.2),
    "speedup_2_cores_real": Goal(at_least=1.8),
    "tpcx_bb_2_workers_real": Goal(at_least=1.5),
    "ct_over_best_other": Goal(at_least=0.95),
    "ordered_overhead": Goal(at_least=0.95),
}

Groups = Mapping[str, Sequence[Result]]
"""Trials by group."""


def run(show: Show, quick: bool = False, part: Sequence[str] = ()) -> Report:
    """Run some parts, or all, which takes about fifteen minutes, or one minute when quick."""
    if unknown := [name for name in part if name not in PARTS]:
        raise SettingError(
            f"bench ordered has no part {', '.join(unknown)}",
            hint=f"use one of: {', '.join(PARTS)}",
        )
    scale = ordered_sweeps.QUICK if quick else ordered_sweeps.FULL
    groups: dict[str, list[Result]] = {}
    for name in part or PARTS:
        groups |= PARTS[name](scale, show)
    return report(groups, quick)


def _chains(scale: OrderedScale, show: Show) -> dict[str, list[Result]]:
    """Chains of operators that sleep or multiply matrices."""
    rounds = {"queries": scale.query_rounds}
    groups = run_all(ordered_sweeps.trials(scale), scale.rounds, show, rounds)
    return {**groups, "limit": ordered_limit.measure(scale.rounds, scale.real_seconds, show)}


def _hosts(scale: OrderedScale, show: Show) -> dict[str, list[Result]]:
    """The queries on hosts whose records also sleep."""
    sides = ordered_sweeps.host_sides(scale)
    return {
        "hosts": ordered_queries.measure("hosts", scale.host_load, sides, scale.query_rounds, show)
    }


def _real(scale: OrderedScale, show: Show) -> dict[str, list[Result]]:
    """The queries on real cores, with many rows at once, and with few from time to time."""
    sides: tuple[tuple[Workers, str], ...] = ((1, "ct"), (2, "ct"), (AUTO, "ct"))
    return {
        group: ordered_queries.measure(group, load, sides, scale.rounds, show)
        for group, load in (("cores", scale.cores_load), ("light load", scale.light_load))
    }


def _flows(scale: OrderedScale, show: Show) -> dict[str, list[Result]]:
    """Whole flows, with order and without."""
    return {
        "flow": ordered_flow.measure(scale.rounds, scale.flow_epochs, show),
        "spark": ordered_spark.measure(scale.rounds, *scale.triggers, show),
    }


PARTS: dict[str, Callable[[OrderedScale, Show], dict[str, list[Result]]]] = {
    "chains": _chains,
    "hosts": _hosts,
    "real": _real,
    "flows": _flows,
}
"""Parts that can be run alone, by `--part`."""


def merged(earlier: Result, newer: Report) -> Report:
    """A report that adds the groups of an earlier one that were not run again. Its settings say which
    commit these are from."""
    old = {name: group for name, group in earlier["results"].items() if name not in newer.results}
    new = {name: group for name, group in newer.results.items() if name != "samples"}
    kept = dict.fromkeys(old, earlier["commit"]) | earlier["settings"].get("kept", {})
    both = report({**old, **new}, newer.settings["quick"])
    both.settings["kept"] = {name: commit for name, commit in kept.items() if name in old}
    return both


def report(groups: Groups, quick: bool = False) -> Report:
    """Build the report from the groups; any of them may be missing."""
    figures = samples(groups)
    return Report(
        "ordered",
        settings={
            "quick": quick,
            **asdict(ordered_sweeps.QUICK if quick else ordered_sweeps.FULL),
            "parts": CHAIN_PARTS,
        },
        results={
            **groups,
            "samples": {name: asdict(sample) for name, sample in figures.items()},
        },
        ratios=ratios(figures),
    )


def ratios(figures: Mapping[str, Sample]) -> dict[str, float]:
    """The figures that are compared with the goals, without those whose runs are missing.

    A figure that exists for several queries or kinds of trials is the lowest of them. Only
    `tpcx_bb_2_workers_real` is the geometric mean over the queries.
    """
    least: dict[str, float] = {}
    for name, sample in figures.items():
        figure = name.partition(" ")[0]
        least[figure] = min(sample.median, least.get(figure, sample.median))
    gains = [s.median for name, s in figures.items() if name.startswith("speedup_2_cores_queries ")]
    if gains:
        least["tpcx_bb_2_workers_real"] = statistics.geometric_mean(gains)
    return least


def samples(groups: Groups) -> dict[str, Sample]:
    """Every ratio over the rounds, by its name, followed by a space and the query or step if it has one."""
    figures: dict[str, Sample] = {}
    hot = _most(having(groups.get("skew", ()), sigma=HOT))
    _put(figures, f"hybrid_over_partitioned_sigma_{HOT}", hot, "queue", "hybrid", "partitioned")
    for trial in having(groups.get("cost", ()), cost_us=1_000, queue="partitioned"):
        (hybrid,) = having(groups["cost"], cost_us=1_000, queue="hybrid")
        name = "latency_partitioned_over_hybrid_1000us"
        figures[name] = over(trial, hybrid, "latency_ms")
    light = _most(groups.get("light", ()))
    _put(figures, "nonblocking_over_lock_light", light, "reorder", "nonblocking", "lock")
    free = groups.get("light, free delivery", ())
    _put(figures, "nonblocking_over_lock_free_delivery", free, "reorder", "nonblocking", "lock")
    _put(figures, "speedup_2_cores_real", groups.get("real", ()), "workers", 2, 1)
    _put(figures, "speedup_2_cores_limit", groups.get("limit", ()), "workers", 2, 1)
    for query in dict.fromkeys(trial["query"] for trial in groups.get("queries", ())):
        figures.update(_of_query(query, having(groups["queries"], query=query)))
    for query in dict.fromkeys(trial["query"] for trial in groups.get("hosts", ())):
        sides = having(groups["hosts"], query=query)
        figures[f"ct_over_best_other host, query {query}"] = _ct_over_best_other(sides)
    for query in dict.fromkeys(trial["query"] for trial in groups.get("cores", ())):
        sides = having(groups["cores"], query=query)
        _put(figures, f"speedup_2_cores_queries query {query}", sides, "workers", 2, 1)
    for group, name in (("cores", "heavy"), ("light load", "light")):
        for query in dict.fromkeys(trial["query"] for trial in groups.get(group, ())):
            sides = having(groups[group], query=query)
            fixed, auto = [s for s in sides if s["workers"] != AUTO], having(sides, workers=AUTO)
            if auto and fixed:
                figures[f"auto_over_best_fixed_{name} query {query}"] = over(auto[0], best(fixed))
    for group, name in (("spark", "ordered_overhead"), ("flow", "ordered_overhead_in_process")):
        for step in dict.fromkeys(trial["step"] for trial in groups.get(group, ())):
            sides = having(groups[group], step=step)
            _put(figures, f"{name} {step}", sides, "ordered", True, False)
    return figures


def _of_query(query: int, trials: Sequence[Result]) -> dict[str, Sample]:
    """A query's ratios by schedule, and by reordering with the most workers."""
    plain = having(trials, queue="hybrid", reorder="nonblocking")
    figures = {f"ct_over_best_other query {query}": _ct_over_best_other(plain)}
    default = _most(having(trials, queue="hybrid", schedule="ct"))
    _put(
        figures,
        f"ordered_overhead_runtime query {query}",
        default,
        "reorder",
        "nonblocking",
        "none",
    )
    return figures


def _ct_over_best_other(trials: Sequence[Result]) -> Sample:
    """Throughput of CT divided by that of the best other schedule, each with its best number of workers."""
    other = best([trial for trial in trials if trial["schedule"] != "ct"])
    return over(best(having(trials, schedule="ct")), other)


def _most(trials: Sequence[Result]) -> list[Result]:
    """The trials with the most workers."""
    return having(trials, workers=max((trial["workers"] for trial in trials), default=0))


def _put(
    figures: dict[str, Sample],
    name: str,
    trials: Sequence[Result],
    fact: str,
    side: Any,
    other: Any,
) -> None:
    sides = [trial for value in (side, other) for trial in having(trials, **{fact: value})]
    if len(sides) == 2:
        figures[name] = over(sides[0], sides[1])
