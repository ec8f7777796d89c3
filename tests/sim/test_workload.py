from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.sim.workload import names, workload


@pytest.mark.parametrize("name", [name for name in names() if name != "exchange"])
def test_every_workload_brings_records_to_all_slots(name: str) -> None:
    load = workload(name, slots=16, seconds=90)
    assert len(load.trace.counts) == 900
    assert np.all(load.trace.counts.sum(axis=0) > 0)


def test_a_hotspot_moves() -> None:
    counts = workload("hotspot", slots=10, seconds=120).trace.counts
    first, second = counts[:600].sum(axis=0), counts[600:].sum(axis=0)
    assert first[:2].sum() / first.sum() == pytest.approx(0.5, abs=0.01)
    assert second[2:4].sum() / second.sum() == pytest.approx(0.5, abs=0.01)


def test_the_same_seed_gives_the_same_records() -> None:
    first, same, other = (workload("burst", 8, seconds=30, seed=s).trace.counts for s in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(SettingError, match="use one of exchange, sine"):
        workload("tide")
