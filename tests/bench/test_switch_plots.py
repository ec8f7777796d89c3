"""Pictures are drawn of a report that is made up. No bench is run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.live.scenarios import BALANCER
from penstock_bench.switch import bench as switch
from penstock_bench.switch import sweeps as switch_sweeps
from penstock_bench.switch.plots import draw
from penstock_bench.switch.projection import projected
from penstock_bench.switch.simulated import Result, Scenario
from tests.bench.drawn import assert_drawn

SECONDS = 90


def result(scenario: Scenario, chance: np.random.Generator) -> Result:
    """As `run_one` tells it: more hosts, more success."""
    hosts = float(scenario.hosts or chance.uniform(4, 16))
    by_slot = 1 - chance.exponential(0.2 / hosts, 64).clip(0, 0.3)
    success = float(by_slot.mean())
    told: Result = {
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
        told["by_slot"] = by_slot.tolist()
    if scenario.timeline_s:
        told["timeline"] = {
            "every_s": scenario.timeline_s,
            "rate": chance.uniform(300, 9_000, SECONDS).tolist(),
            "hosts": chance.integers(3, 12, SECONDS).astype(float).tolist(),
            "mean_ms": [None, *chance.uniform(1, 400, SECONDS - 1).tolist()],
            "p99_ms": [None, *chance.uniform(20, 4_000, SECONDS - 1).tolist()],
            "balanced_s": [5.0, 40.0],
        }
    if scenario.keep_loads:
        told["loads"] = chance.uniform(400, 1_500, (3, SECONDS)).tolist()
    return told


def live(name: str, policy: str | None, uneven: tuple[float, ...] = ()) -> Result:
    chance = np.random.default_rng(3)
    series = {of: chance.uniform(100, 900, SECONDS).tolist() for of in ("rate", "hosts", "mean_ms")}
    return {
        "name": name,
        "policy": policy,
        "success": 0.98,
        "hosts": 3.5,
        "max_over_mean": list(uneven),
        "by_second": series | {"p99_ms": [None, *series["mean_ms"][1:]]},
        "settings": {"warm_up_s": 10, "sla": {"latency_ms": 1000, "window_ms": 1000}},
    }


def report(scale: switch_sweeps.Scale) -> dict[str, Any]:
    """As `switch.run` makes it at this scale."""
    chance = np.random.default_rng(7)
    groups: switch.Groups = {}
    for scenario in switch_sweeps.scenarios(scale):
        groups.setdefault(scenario.group, []).append(result(scenario, chance))
    loads = [
        projected(engine, rate, 1000.0, cost_ms, 1.4 * cost_ms + 2)
        for engine, cost_ms in (("continuous", 0.0), ("epochs", 250.0), ("live", 210.0))
        for rate in (200.0, 500.0, 800.0)
    ]
    told: dict[str, Any] = json.loads(switch.report(groups, (5.0, []), loads, []).to_json())
    told["results"]["live"] = [
        live("burst", "switch"),
        live("sine", "switch"),
        live("exchange", "switch"),
        live("hotspot 50% on 3", BALANCER, (1.02, 1.1)),
        live("hotspot 50% on 3", "switch", (1.12, 1.04)),
        live("steady", None),
    ]
    return told


NAMES = [
    *("5-success-vs-hosts", "5-boxes", "5-slots", "6-over-time", "10-parameters"),
    *("11-parameters-treatments", "12-kinds", "13-kinds-used", "14-waves", "15-delays"),
    *("16-splits", "autoflow-5-hotspots", "autoflow-6-spikes", "autoflow-7-moving"),
    *("live-burst", "live-sine", "live-exchange", "live-hotspots", "projections"),
]


def names(files: list[Path]) -> list[str]:
    return sorted(file.name.removeprefix("switch-").removesuffix(".png") for file in files)


def test_every_picture_shows_something(tmp_path: Path) -> None:
    drawn = draw(report(switch_sweeps.FULL), tmp_path / "images")
    assert sorted(drawn) == sorted((tmp_path / "images").iterdir())
    assert names(drawn) == sorted(NAMES)
    assert_drawn(drawn)


@pytest.mark.slow
def test_a_quick_report_has_the_same_pictures(tmp_path: Path) -> None:
    assert names(draw(report(switch_sweeps.QUICK), tmp_path)) == sorted(NAMES)


def test_what_was_not_run_is_left_out(tmp_path: Path) -> None:
    told = report(switch_sweeps.QUICK)
    told["results"]["live"] = []
    told["results"]["projections"]["loads"] = []
    told["results"]["simulated"] = {"waves": told["results"]["simulated"]["waves"]}
    (one,) = draw(told, tmp_path / "one")
    assert one.name == "switch-14-waves.png"
    (two,) = draw(told, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()


def test_another_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no report of bench switch but of 'pipeline'"):
        draw({"bench": "pipeline", "results": {}}, tmp_path)
