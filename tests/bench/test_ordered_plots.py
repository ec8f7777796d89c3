"""Pictures of `penstock bench ordered`, drawn from made-up reports. No bench is run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.ordered import bench as ordered
from penstock_bench.ordered import queries as ordered_queries
from penstock_bench.ordered import sweeps as ordered_sweeps
from penstock_bench.ordered.markers import Shown
from penstock_bench.ordered.plots import draw
from penstock_bench.ordered.trials import Trial, told
from tests.bench.drawn import assert_drawn

NAMES = [
    *("8-throughput", "8-latency", "9-skew", "10-latency-by-cost", "11-queues"),
    *("12-light", "13-selectivity", "14-reorderings", "8-hosts", "cores"),
]


def shown(trial: Trial, chance: np.random.Generator) -> Shown:
    """Nearly linear in the workers; with a partitioned queue, half of it."""
    rate = 200.0 * trial.workers**0.9 * (0.5 if trial.queue == "partitioned" else 1.0)
    rate *= chance.uniform(0.9, 1.0)
    return Shown(rate, 5e3 / rate, 9e3 / rate)


def report(scale: ordered_sweeps.Scale) -> dict[str, Any]:
    """As `ordered.run` makes it at this scale."""
    chance = np.random.default_rng(5)
    groups: dict[str, list[Any]] = {}
    for trial in ordered_sweeps.trials(scale):
        rounds = [shown(trial, chance) for _ in range(scale.rounds)]
        groups.setdefault(trial.group, []).append(told(trial, rounds))
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
    found: dict[str, Any] = json.loads(ordered.report(groups).to_json())
    return found


def names(files: list[Path]) -> list[str]:
    return sorted(file.name.removeprefix("ordered-").removesuffix(".png") for file in files)


def test_every_picture_shows_something(tmp_path: Path) -> None:
    drawn = draw(report(ordered_sweeps.FULL), tmp_path / "images")
    assert sorted(drawn) == sorted((tmp_path / "images").iterdir())
    assert names(drawn) == sorted(NAMES)
    assert_drawn(drawn)


def test_a_quick_report_has_the_same_pictures(tmp_path: Path) -> None:
    assert names(draw(report(ordered_sweeps.QUICK), tmp_path)) == sorted(NAMES)


def test_what_was_not_run_is_left_out(tmp_path: Path) -> None:
    one = report(ordered_sweeps.QUICK)
    one["results"] = {"cost": one["results"]["cost"]}
    (first,) = draw(one, tmp_path / "one")
    assert first.name == "ordered-10-latency-by-cost.png"
    (second,) = draw(one, tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()


def test_another_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no report of bench ordered but of 'switch'"):
        draw({"bench": "switch", "results": {}}, tmp_path)
