"""`penstock bench peers`: the same stateful work in Penstock, Spark, Flink, Bytewax and Pathway.

Each side runs in a process of its own, on all cores, with its state made durable every second. Row i of the
stream is a function of i, and each engine makes or reads the rows in its fastest way; the part `pass_through`
tells what that costs. Before a side is timed, its answer to a small stream is compared with DuckDB's.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, SettingError
from penstock_bench.peers import latency
from penstock_bench.peers.answers import wrong
from penstock_bench.peers.engines import ENGINES, Engine, missing
from penstock_bench.peers.engines import run as run_side
from penstock_bench.peers.stream import FULL, SMALL_ROWS, TASKS
from penstock_bench.report import Goal, PartResult, Report, Result, Sample, Show

GOALS = {
    "sum_vs_flink_sql": Goal(at_least=1.0),
    "sum_vs_bytewax": Goal(at_least=1.0),
    "sum_vs_pathway": Goal(at_least=1.0),
    "python_fn_vs_pyflink": Goal(at_least=1.0),
    "python_fn_vs_bytewax": Goal(at_least=1.0),
    "windowed_vs_flink_sql": Goal(at_least=1.0),
}
PARTS = (*TASKS, "latency")
_RIVALS = {
    "sum_vs_flink_sql": ("sum", ("flink_sql", "flink_sql_batched")),
    "sum_vs_bytewax": ("sum", ("bytewax",)),
    "sum_vs_pathway": ("sum", ("pathway",)),
    "python_fn_vs_pyflink": ("python_fn", ("flink_table", "flink_datastream")),
    "python_fn_vs_bytewax": ("python_fn", ("bytewax",)),
    "windowed_vs_flink_sql": ("windowed", ("flink_sql",)),
}
"""Ratio -> its task, and the rival's ways to do it, of which the fastest counts."""
_LIMIT_S = 300.0
"""Seconds for one round of a side. Most take half a minute; PyFlink needs one to see all keys once."""


@dataclass(frozen=True)
class PeersScale:
    """Size of the benchmark."""

    rounds: int = 2
    seconds: float = 5.0
    """Seconds of a measurement, after a warm-up of about the same length."""
    pass_through_rounds: int = 1


QUICK = PeersScale(1, 3.0)
FULL_SCALE = PeersScale()


def run(show: Show, quick: bool = False, part: Sequence[str] = ()) -> Report:
    """Run some parts, or all, which takes about 25 minutes, or 15 when quick."""
    if unknown := [name for name in part if name not in PARTS]:
        raise SettingError(
            f"bench peers has no part {', '.join(unknown)}", hint=f"use one of: {', '.join(PARTS)}"
        )
    scale = QUICK if quick else FULL_SCALE
    results = {}
    for name in part or PARTS:
        show(f"part {name}")
        began = time.monotonic()
        made = latency.run(show, quick) if name == "latency" else _compare(name, scale, show)
        results[name] = made.to_plain(quick)
        results[name]["sides"] = {
            side: side_result(rounds) for side, rounds in results[name]["sides"].items()
        }
        show(f"part {name} took {(time.monotonic() - began) / 60:.1f} minutes")
    return report(results)


def report(results: Mapping[str, Result]) -> Report:
    """A report of these parts' results."""
    parts = {name: results[name] for name in PARTS if name in results}
    absent = {
        side: reason for result in parts.values() for side, reason in result["missing"].items()
    }
    return Report("peers", {"parts": list(parts), "missing": absent}, parts, ratios(parts))


def merged(earlier: Result, newer: Report) -> Report:
    """A report that adds the results of an earlier one for parts that were not run again.

    A part that was run again with the same code and settings gets more rounds; else it is replaced.
    """
    before: dict[str, Result] = earlier["results"]
    again = {
        name: _more_rounds(before[name], result) if name in before else result
        for name, result in newer.results.items()
    }
    return report({**before, **again})


def _more_rounds(before: Result, after: Result) -> Result:
    same = all(
        before["run"][fact] == after["run"][fact] for fact in ("commit", "settings", "dirty")
    )
    if not same or after["run"]["dirty"] or set(before["sides"]) != set(after["sides"]):
        return after
    sides = {
        name: side_result([*before["sides"][name].get("rounds", []), *side.get("rounds", [])])
        for name, side in after["sides"].items()
    }
    return {**after, "sides": sides}


def side_result(rounds: list[dict[str, Any]]) -> Result:
    """The result of a side: of throughput, or of latency, whose median round by p99 counts."""
    if "p99_ms" in rounds[0]:
        order = sorted(rounds, key=lambda each: float(each["p99_ms"]))
        return {**order[(len(order) - 1) // 2], "rounds": rounds}
    rates = [float(each["rows_per_second"]) for each in rounds]
    return {"rows_per_second": asdict(Sample.of(rates)), "rounds": rounds}


def ratios(results: Mapping[str, Result]) -> dict[str, float]:
    """Penstock's throughput divided by that of its rivals, for sides that were measured."""
    found = {}
    for name, (task, rivals) in _RIVALS.items():
        sides = results[task]["sides"] if task in results else {}
        theirs = [_median(sides[rival]) for rival in rivals if rival in sides]
        if theirs and "penstock" in sides:
            found[name] = _median(sides["penstock"]) / max(theirs)
    return found


def _median(side: Result) -> float:
    return float(side["rows_per_second"]["median"])


def _compare(task: str, scale: PeersScale, show: Show) -> PartResult:
    """All sides that have a task, in turn, in several rounds."""
    absent: dict[str, str] = {}
    measured: dict[str, list[dict[str, Any]]] = {}
    rounds = scale.pass_through_rounds if task == "pass_through" else scale.rounds
    with tempfile.TemporaryDirectory(prefix="penstock-peers-", ignore_cleanup_errors=True) as place:
        for number, (name, engine) in itertools.product(range(1, rounds + 1), ENGINES.items()):
            if task not in engine.tasks or name in absent:
                continue
            try:
                facts = _timed(
                    engine, task, number == 1, scale.seconds, Path(place, f"{name}-{number}")
                )
            except PenstockError as error:
                # A side that is missing, fails or is wrong is named, and the others go on.
                absent[name] = str(error)
                measured.pop(name, None)
                show(f"{engine.title}: {error}")
                continue
            measured.setdefault(name, []).append(facts)
            rate = facts["rows_per_second"]
            show(f"{task}, round {number}: {engine.title:<24} {rate:12,.0f} rows/s")
    settings = asdict(scale) | asdict(FULL) | {"checkpoint_s": 1, "compared_rows": SMALL_ROWS}
    return PartResult(settings, {"sides": measured, "missing": absent})


def _timed(engine: Engine, task: str, first: bool, seconds: float, folder: Path) -> dict[str, Any]:
    """One round of a side. The first one also checks its answer; PenstockError if that is wrong."""
    if reason := missing(engine):
        raise PenstockError(reason)
    checks = first and task != "pass_through"
    facts: dict[str, Any] = run_side(
        engine, task, "both" if checks else "time", seconds, folder, _LIMIT_S
    )
    if checks and (fault := wrong(task, folder / "answer")):
        raise PenstockError(f"its answer is wrong: {fault}")
    return facts
