"""Pictures are drawn of a report that is made up. No bench is run here."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.live.per_second import Seconds
from penstock_bench.migration.bench import FULL, MOVE_AT, QUICK, SECONDS, Killed, Move, Moved, Scale
from penstock_bench.migration.plots import draw

LAST = 18.0
"""Seconds that a pause of 5 GB takes here."""
MB = {"50mb": 50.0, "500mb": 500.0, "5gb": 5_000.0}


def moved(size: str, move: Move, chance: np.random.Generator) -> Moved:
    """Lazy is calm. Of the others some stop for as long as their bytes take, some are late a little."""
    share = MB[size] / 5_000 * move.fraction
    stop_s = {"pause": LAST, "all_at_once": LAST * 0.7}.get(move.strategy, 0.0) * share
    late_ms = {"batched(8)": 900, "fluid": 300, "lazy(16)": 30}.get(move.strategy, 15) * share
    times = np.arange(SECONDS * 100) / 100
    after = times - MOVE_AT
    latency = chance.lognormal(np.log(45), 0.25, len(times)) + 40 * move.skew
    latency += np.where(after > 0, late_ms, 0) + 1000 * np.clip(stop_s - 0.8 * after, 0, stop_s) * (
        after > 0
    )
    by_second = latency.reshape(SECONDS, 100)
    seconds = Seconds(
        np.percentile(by_second, 50, axis=1).tolist(),
        np.percentile(by_second, 99, axis=1).tolist(),
        [float(np.percentile(latency[: (n + 1) * 100], 99)) for n in range(SECONDS)],
    )
    part = {"lazy(0)": 0.025, "lazy(16)": 0.15}.get(move.strategy, 1.0)
    return Moved(
        size,
        move.strategy,
        move.fraction,
        move.skew,
        seconds,
        seconds.steady_ms(MOVE_AT),
        seconds.peak_ms(MOVE_AT),
        moved_keys=int(1e6 * move.fraction * part),
        moved_bytes=int(MB[size] * 1e6 * move.fraction * part),
        moved_fraction=part,
        round_trips=24,
    )


def report(scale: Scale) -> dict[str, Any]:
    """As `migration.run` makes it at this scale."""
    chance = np.random.default_rng(7)
    moves = [moved(size, move, chance) for size in scale.sizes for move in scale.moves()]
    kills = [
        Killed(size, float(chance.normal(900, 60)), 2, 950.0, 60.0)
        for size in scale.sizes
        for _ in range(scale.kills)
    ]
    return {
        "bench": "migration",
        "settings": {"move_at": MOVE_AT, "seconds": SECONDS},
        "results": {
            "moves": [asdict(one) for one in moves],
            "recoveries": [asdict(one) for one in kills],
        },
    }


PART = replace(FULL, sizes=("50mb", "5gb"), fractions=(0.5, 1.0))
NAMES = [
    *("cumulative-p99-50mb", "p99-50mb", "p50-50mb", "cumulative-p99-5gb", "p99-5gb"),
    *("skew-p50", "skew-p99", "strategies", "moved", "recovery"),
]


def names(files: list[Path]) -> list[str]:
    return sorted(file.name.removeprefix("migration-").removesuffix(".png") for file in files)


def test_every_picture_shows_something(tmp_path: Path) -> None:
    from PIL import Image

    drawn = draw(report(PART), tmp_path / "images")
    assert sorted(drawn) == sorted((tmp_path / "images").iterdir())
    assert names(drawn) == sorted(NAMES)
    for file in drawn:
        assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert file.stat().st_size < 100_000
        pixels = np.asarray(Image.open(file).convert("RGB")) / 255
        assert pixels.shape[1] == 1200
        for half in np.array_split(pixels, 2, axis=1):
            assert half.var() > 0.001


def test_what_was_not_run_is_left_out(tmp_path: Path) -> None:
    """And a dot at zero has no place on a log axis."""
    told = report(replace(QUICK, skews=()))
    for move in told["results"]["moves"]:
        move["moved_bytes"] = 0
    told["results"]["moves"] = [m for m in told["results"]["moves"] if m["strategy"] == "fluid"]
    assert names(draw(told, tmp_path)) == ["moved", "recovery", "strategies"]


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    told = report(QUICK)
    told["results"]["moves"] = []
    (one,), (two,) = (draw(told, tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_another_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no report of bench migration but of 'pipeline'"):
        draw({"bench": "pipeline", "results": {}}, tmp_path)


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match="pip install matplotlib"):
        draw(report(QUICK), tmp_path)
