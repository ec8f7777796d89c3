"""Pictures are drawn of a report that is made up. No bench is run here."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.burst import bench as burst
from penstock_bench.burst import params as burst_params
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.outcome import LiveRuns
from penstock_bench.burst.plots import draw
from penstock_bench.burst.scenarios import FULL, QUICK, LiveBurst
from penstock_bench.burst.sides import SIDES, Side
from penstock_bench.switch.drawing import Run
from tests.bench.drawn import assert_drawn

PEAKS_MS = dict(zip(SIDES, (60e3, 38e3, 6e3, 5e3, 12e3, 1.4e3, 1.2e3, 9e3, 4e3, 2e3), strict=True))
"""Of each side, in the order in which sides are told."""


def series(side: Side, at_s: int, seconds: int, seed: int) -> dict[str, list[float | None]]:
    """A latency that goes up in the burst and comes down after it."""
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


def simulated(scenario: burst_sim.BurstScenario) -> Run:
    """As `burst_sim.run_one` tells it."""
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
        "by_second": series(scenario.side, at_s, seconds, int(scenario.query[1:])),
    }


def live(scenario: LiveBurst) -> Run:
    """As a `BurstOutcome` is told."""
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
        "by_second": series(scenario.side, scenario.at_s, scenario.for_s, 5),
    }


def report(quick: bool = False) -> dict[str, Any]:
    """As `burst.run` makes it."""
    grid = [simulated(scenario) for scenario in burst_sim.grid(quick)]
    sweeps = {"factor": burst_sim.burstiness(), "slots": burst_sim.parallelism()}
    swept = {over: [simulated(one) for one in some] for over, some in sweeps.items()}
    made = burst.report(grid, {} if quick else swept, LiveRuns(), {}, {}, quick)
    told: dict[str, Any] = json.loads(made.to_json())
    runs = [live(scenario) for scenario in (QUICK if quick else FULL)]
    told["results"]["live"] = runs
    told["results"]["costs"]["live"] = burst.costs(runs)
    return told


SIMULATED = ["10-latency", "11-loads", "12-peaks", "13-breakdown", "14-sweeps", "15-trade-off"]
LIVE = ["10-live-latency", "11-live-loads", "15-live-trade-off"]


def names(files: list[Path]) -> list[str]:
    return sorted(file.name.removeprefix("burst-").removesuffix(".png") for file in files)


def test_every_picture_shows_something(tmp_path: Path) -> None:
    drawn = draw(report(), tmp_path / "images")
    assert sorted(drawn) == sorted((tmp_path / "images").iterdir())
    assert names(drawn) == sorted(SIMULATED + LIVE)
    assert_drawn(drawn)


def test_a_quick_report_has_no_sweeps(tmp_path: Path) -> None:
    assert names(draw(report(quick=True), tmp_path)) == sorted({*SIMULATED, *LIVE} - {"14-sweeps"})


def test_what_was_not_run_is_left_out(tmp_path: Path) -> None:
    told = report(quick=True)
    told["results"]["simulated"] = []
    told["results"]["costs"] = {}
    one = draw(told, tmp_path / "one")
    assert names(one) == ["10-live-latency", "11-live-loads"]
    two = draw(told, tmp_path / "two")
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_another_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no report of bench burst but of 'switch'"):
        draw({"bench": "switch", "results": {}}, tmp_path)


def test_only_what_is_drawn_keeps_its_seconds() -> None:
    runs = report()["results"]["simulated"]
    assert len(runs) == len(burst_sim.grid())
    shown = [run for run in runs if "by_second" in run]
    assert {(run["factor"], run["seconds"], run["shape"]) for run in shown} == {(5, 60, "burst")}
    assert {(run["query"], run["side"]) for run in shown} == set(
        product(burst_params.QUERIES, SIDES)
    )
