"""The latency history: averages weighted by rows, the window, and forgetting old epochs."""

from __future__ import annotations

from typing import Any

from penstock.console.history import LatencyHistory
from penstock.console.running.watch import seen_epoch
from tests.console.running.steered_query import epoch


def take(history: LatencyHistory, progress: dict[str, Any], window_ms: float) -> None:
    seen = seen_epoch(progress)
    assert seen is not None
    history.take(seen, window_ms)


def test_history_weights_by_rows_within_the_window() -> None:
    history = LatencyHistory(bar_ms=2000)
    take(history, epoch(0, mean_ms=5000.0), window_ms=1000)
    take(history, epoch(2, mean_ms=100.0, rows=300), window_ms=1000)
    take(history, epoch(3, mean_ms=500.0, rows=100), window_ms=1000)
    assert history.newest is not None
    assert history.newest.average_ms == 200.0
    assert history.worst_ms == 5000.0


def test_history_takes_an_epoch_once_and_none_without_rows() -> None:
    history = LatencyHistory(bar_ms=2000)
    assert seen_epoch(None) is None
    assert seen_epoch(epoch(0, rows=0)) is None
    assert history.newest is None
    assert history.bars_ms == []
    for _ in range(3):
        take(history, epoch(1, mean_ms=100.0), window_ms=10_000)
    take(history, epoch(2, mean_ms=200.0), window_ms=10_000)
    assert history.newest is not None
    assert history.newest.average_ms == 150.0


def test_history_forgets_epochs_older_than_three_minutes() -> None:
    history = LatencyHistory(bar_ms=2000)
    take(history, epoch(0, mean_ms=5000.0), window_ms=100)
    for number in range(1, 360):
        take(history, epoch(number), window_ms=100)
    assert history.worst_ms == 5000.0
    take(history, epoch(360), window_ms=100)
    assert history.worst_ms == 240.0
    assert len(history.bars_ms) in (90, 91)
