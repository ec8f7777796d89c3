from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import SettingError
from penstock.model import SLA
from penstock.sim.success import success_rates

Array = npt.NDArray[Any]
DELTA = 100.0


def by_definition(
    arrived: Array, completed: Array, latency: Array, sla: SLA, every: int, ages: Array
) -> list[float]:
    length, slots = arrived.shape
    window = round(sla.window_ms / DELTA)
    rates = []
    for slot in range(slots):
        kept = windows = 0
        for end in range(every, length + 1, every):
            windows += 1
            rows = slice(max(0, end - window), end)
            count = completed[rows, slot].sum()
            if count:
                kept += latency[rows, slot].sum() <= sla.latency_ms * count
                continue
            done = completed[:end, slot].sum()
            waiting = np.flatnonzero(np.cumsum(arrived[:end, slot]) > done)
            oldest = waiting[0] if len(waiting) else None
            kept += (
                oldest is None or (end - 1 - oldest + 0.5) * DELTA + ages[oldest] <= sla.latency_ms
            )
        rates.append(kept / windows)
    return rates


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("every", [1, 7])
def test_success_matches_its_definition(seed: int, every: int) -> None:
    random = np.random.default_rng(seed)
    arrived = random.poisson(0.6, (300, 4)) * (random.random((300, 1)) < 0.5)
    completed, ages = np.zeros_like(arrived), random.uniform(0, 200, 300)
    waiting = np.zeros(4, dtype=np.int64)
    for m in range(300):
        waiting += arrived[m]
        stuck = random.random(4) < 0.9
        completed[m] = np.where(stuck, 0, random.integers(0, waiting + 1))
        waiting -= completed[m]
    latency = completed * random.uniform(0, 2000, completed.shape)
    sla = SLA(1000, 500)
    rates = success_rates(arrived, completed, latency, DELTA, sla, every, ages)
    assert rates.tolist() == by_definition(arrived, completed, latency, sla, every, ages)
    assert 0.1 < rates.mean() < 0.95


def test_quiet_slots_keep_the_sla() -> None:
    quiet = np.zeros((50, 2))
    assert success_rates(quiet, quiet, quiet, DELTA, SLA(1000, 1000)).tolist() == [1.0, 1.0]


def test_a_record_that_never_completes_is_noticed() -> None:
    arrived = np.zeros((50, 1))
    arrived[9] = 1
    none = np.zeros((50, 1))
    # The SLA is kept until the end of a time slot at which the record has waited for over a second.
    assert success_rates(arrived, none, none, DELTA, SLA(1000, 1000)).tolist() == [19 / 50]


def test_fractions_of_records_add_up() -> None:
    """The fluid model leaves no fraction of a record that would seem to wait forever."""
    random = np.random.default_rng(1)
    arrived = np.zeros((20_000, 1))
    arrived[::10] = random.integers(1, 1000, (2000, 1))
    parts = random.dirichlet(np.ones(5), 2000)[:, :, None]
    completed = np.zeros((20_000, 1))
    for n in range(5):
        completed[n::10] = arrived[::10] * parts[:, n]
    rates = success_rates(arrived, completed, completed * 100.0, DELTA, SLA(150, 100))
    assert rates.tolist() == [1.0]


@pytest.mark.parametrize(("window_ms", "every"), [(10, 1), (1000, 0)])
def test_windows_that_make_no_sense_are_refused(window_ms: int, every: int) -> None:
    some = np.zeros((5, 1))
    with pytest.raises(SettingError, match="the window is"):
        success_rates(some, some, some, DELTA, SLA(1000, window_ms), every)


def test_arrays_of_different_shapes_are_refused() -> None:
    with pytest.raises(SettingError, match="one value for each"):
        success_rates(np.zeros((5, 1)), np.zeros((4, 1)), np.zeros((5, 1)), DELTA, SLA(1000, 1000))
