"""Charts of made-up reports: their names, and that they are not empty."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.burst import params as burst_params
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.sides import SIDES
from penstock_bench.catalog import BENCHES
from penstock_bench.charts import draw
from penstock_bench.migration import bench as migration
from penstock_bench.nexmark import bench as nexmark
from penstock_bench.ordered import sweeps as ordered_sweeps
from penstock_bench.switch import sweeps as switch_sweeps
from tests.bench.made_up import (
    burst_report,
    chaos_report,
    live_report,
    load_report,
    migration_report,
    nexmark_report,
    ordered_report,
    peers_report,
    soak_report,
    switch_report,
)

NAMES = {
    "burst": [
        *("10-latency", "11-loads", "12-peaks", "13-breakdown", "14-sweeps", "15-trade-off"),
        *("10-live-latency", "11-live-loads", "15-live-trade-off", "live-unpaced"),
    ],
    "chaos": ["latency", "recovery"],
    "live": [
        *("latency", "changes", "migration", "sla", "switch", "hotspots", "burst", "ordered"),
    ],
    "migration": [
        *("cumulative-p99-50mb", "p99-50mb", "p50-50mb", "cumulative-p99-5gb", "p99-5gb"),
        *("skew-p50", "skew-p99", "strategies", "moved", "recovery"),
    ],
    "load": [""],
    "peers": [""],
    "nexmark": [""],
    "soak": [""],
    "ordered": [
        *("8-throughput", "8-latency", "9-skew", "10-latency-by-cost", "11-queues"),
        *("12-light", "13-selectivity", "14-reorderings", "8-hosts", "cores"),
    ],
    "switch": [
        *("5-success-vs-hosts", "5-boxes", "5-slots", "6-over-time", "10-parameters"),
        *("11-parameters-treatments", "12-kinds", "13-kinds-used", "14-waves", "15-delays"),
        *("16-splits", "autoflow-5-hotspots", "autoflow-6-spikes", "autoflow-7-moving"),
        *("live-burst", "live-sine", "live-exchange", "live-hotspots", "projections"),
        *("live-nexmark", "live-q5-unpaced"),
    ],
}
REPORTS: dict[str, Callable[[], dict[str, Any]]] = {
    "burst": burst_report,
    "chaos": chaos_report,
    "live": live_report,
    "load": load_report,
    "peers": peers_report,
    "soak": soak_report,
    "migration": lambda: migration_report(
        replace(migration.FULL, sizes=("50mb", "5gb"), fractions=(0.5, 1.0))
    ),
    "nexmark": nexmark_report,
    "ordered": lambda: ordered_report(ordered_sweeps.FULL),
    "switch": lambda: switch_report(switch_sweeps.FULL),
}


@pytest.fixture(scope="module", autouse=True)
def _fonts_are_closed() -> Iterator[None]:
    """Close the fonts that matplotlib keeps open."""
    from matplotlib import font_manager

    yield
    font_manager._get_font.cache_clear()  # type: ignore[attr-defined]


def names(report: dict[str, Any]) -> set[str]:
    """Names of the charts of a report, without the prefix of the bench."""
    made = BENCHES[report["bench"]].pictures
    assert made is not None
    return {name.removeprefix(report["bench"]).removeprefix("-") for name in made(report)}


def drawn(report: dict[str, Any], folder: Path) -> list[Path]:
    made = BENCHES[report["bench"]].pictures
    assert made is not None
    return draw(report["bench"], made, report, folder)


@pytest.mark.parametrize("bench", NAMES)
def test_every_picture_shows_something(bench: str, tmp_path: Path) -> None:
    from PIL import Image

    report = REPORTS[bench]()
    files = drawn(report, tmp_path / "images")
    assert sorted(files) == sorted((tmp_path / "images").iterdir())
    assert {file.stem for file in files} == {f"{bench}-{name}".rstrip("-") for name in NAMES[bench]}
    assert names(report) == set(NAMES[bench])
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert file.stat().st_size < 150_000
        pixels = np.asarray(Image.open(file).convert("RGB")) / 255
        assert pixels.shape[1] == 1200
        for half in np.array_split(pixels, 2, axis=1):
            assert half.var() > 0.001, file.name


def test_a_quick_report_has_the_same_pictures() -> None:
    assert names(ordered_report(ordered_sweeps.QUICK)) == set(NAMES["ordered"])
    assert names(switch_report(switch_sweeps.QUICK)) == set(NAMES["switch"])
    assert names(burst_report(quick=True)) == {*NAMES["burst"]} - {"14-sweeps"}


def without_most() -> list[tuple[dict[str, Any], set[str]]]:
    """Reports of which most parts were not run, and the names of their charts."""
    burst = burst_report(quick=True)
    burst["results"] = {"live": burst["results"]["live"] | {"costs": {}}}
    fluid = migration_report(replace(migration.QUICK, skews=()))
    # A dot at zero does not fit on a log axis.
    fluid["results"]["moves"] = [
        move | {"moved_bytes": 0}
        for move in fluid["results"]["moves"]
        if move["strategy"] == "fluid"
    ]
    ordered = ordered_report(ordered_sweeps.QUICK)
    ordered["results"] = {"cost": ordered["results"]["cost"]}
    switch = switch_report(switch_sweeps.QUICK)
    groups = switch["results"]["simulated"]["groups"]
    switch["results"] = {"simulated": {"groups": {"waves": groups["waves"]}}}
    alone = {"q4": nexmark.compared({"penstock": [1e5, 2e5]})}
    return [
        (burst, {"10-live-latency", "11-live-loads"}),
        (fluid, {"moved", "recovery", "strategies"}),
        (ordered, {"10-latency-by-cost"}),
        (switch, {"14-waves"}),
        ({"bench": "nexmark", "results": alone}, {""}),
        ({"bench": "nexmark", "results": {}}, set()),
        (_calm(chaos_report()), {"latency"}),
    ]


def _calm(chaos: dict[str, Any]) -> dict[str, Any]:
    """A run in which no fault happened."""
    chaos["results"] |= {"faults": [], "kinds": [{"kind": "store full", "due": 1, "happened": 0}]}
    return chaos


@pytest.mark.parametrize(("report", "expected"), without_most())
def test_what_was_not_run_is_left_out(
    report: dict[str, Any], expected: set[str], tmp_path: Path
) -> None:
    assert names(report) == expected
    one, two = drawn(report, tmp_path / "one"), drawn(report, tmp_path / "two")
    assert len(one) == len(expected)
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


@pytest.mark.parametrize("bench", NAMES)
def test_another_bench_is_refused(bench: str, tmp_path: Path) -> None:
    made = BENCHES[bench].pictures
    assert made is not None
    with pytest.raises(SettingError, match=f"not a report of bench {bench} but of 'pipeline'"):
        draw(bench, made, {"bench": "pipeline", "results": {}}, tmp_path)


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match="pip install matplotlib"):
        drawn(nexmark_report(), tmp_path)


def test_only_what_is_drawn_of_bursts_keeps_its_seconds() -> None:
    runs = burst_report()["results"]["simulated"]["grid"]
    assert len(runs) == len(burst_sim.grid())
    shown = [run for run in runs if "by_second" in run]
    assert {(run["factor"], run["seconds"], run["shape"]) for run in shown} == {(5, 60, "burst")}
    assert {(run["query"], run["side"]) for run in shown} == set(
        product(burst_params.QUERIES, SIDES)
    )
