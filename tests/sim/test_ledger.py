from __future__ import annotations

import numpy as np
import pytest

from penstock.sim.ledger import Ledger


def test_an_epoch_is_spread_over_the_seconds_that_it_lasts() -> None:
    ledger = Ledger(np.zeros((40, 1)), delta_ms=100.0)
    ledger.note_epoch(500.0, 2500.0, busy_ms=1000.0, workers=3, money=0.2)
    ledger.note_epoch(2500.0, 2600.0, busy_ms=100.0, workers=7, money=0.0)
    ledger.note_epoch(3900.0, 4100.0, busy_ms=200.0, workers=0, money=0.0)
    series = ledger.series()
    assert series.load.tolist() == pytest.approx([0.25, 0.5, 0.35, 0.1])
    assert series.workers.tolist() == [3.0, 3.0, 7.0, 0.0]
    assert series.worker_money.tolist() == pytest.approx([0.05, 0.1, 0.05, 0.0])


def test_an_epoch_after_the_end_of_the_trace_is_not_recorded() -> None:
    ledger = Ledger(np.zeros((10, 1)), delta_ms=100.0)
    ledger.note_epoch(1500.0, 2500.0, busy_ms=1000.0, workers=3, money=0.2)
    assert ledger.series().load.tolist() == [0.0]
