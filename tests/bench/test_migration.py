"""The parts of `bench migration`, and the ratios of those that were run."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.migration.bench import FULL, GOALS, LAZY, Killed, Moved, _ratios
from tests.bench.made_up import _moved


def moved(parts: tuple[str, ...]) -> list[Moved]:
    scale, chance = FULL.of(parts), np.random.default_rng(1)
    last = scale.sizes[-1]
    return [
        _moved(size, move, chance) for size in scale.sizes for move in scale.moves(size == last)
    ]


def test_parts_run_what_their_ratios_need() -> None:
    runs = moved(("peak", "recovery"))
    assert {(m.size, m.strategy, m.fraction) for m in runs} == {("5gb", LAZY, 0.5)}
    killed = [
        Killed(size, ms, 2, 900.0, 300.0) for size, ms in (("50mb", 400.0), ("5gb", 500.0)) * 3
    ]
    ratios = _ratios(runs, killed, [])
    assert ratios["recovery_5gb_over_50mb"] == pytest.approx(1.25)
    assert set(ratios) == {
        "peak_lazy_over_steady_5gb",
        "moved_fraction_lazy",
        "recovery_5gb_over_50mb",
    }
    everything = _ratios(moved(("moves", "overhead", "recovery")), killed, [1.0])
    assert set(everything) == set(GOALS)
    with pytest.raises(SettingError, match="no part peaks"):
        FULL.of(("peaks",))
