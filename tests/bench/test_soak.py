"""The soak bench: growth computed from samples, and the sampling of processes."""

from __future__ import annotations

import os

import psutil
import pytest

from penstock_bench.soak.bench import GOALS, report
from penstock_bench.soak.samples import by_role
from tests.bench.made_up import soak_samples


def test_constant_usage_is_flat() -> None:
    ratios = report(soak_samples(), 1800).ratios
    assert ratios.keys() == GOALS.keys()
    assert all(goal.met(ratios[name]) for name, goal in GOALS.items())
    assert ratios["memory_growth"] == pytest.approx(1.0, abs=0.01)


def test_a_leak_is_detected() -> None:
    """Memory grows from 190 MB in the middle to 280 MB at the end."""
    ratios = report(soak_samples(leak_mb=1.0), 1800).ratios
    assert ratios["memory_growth"] == pytest.approx(280 / 190, abs=0.02)
    assert not GOALS["memory_growth"].met(ratios["memory_growth"])


def test_this_process_is_a_driver() -> None:
    held = by_role({})["driver"]
    assert held.memory_mb == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.1)
    assert held.descriptors == pytest.approx(len(os.listdir("/proc/self/fd")), abs=3)
    assert held.threads >= 1
