"""Figures of `penstock bench live`: what a consumer received, and what that is measured by."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_bench.live import bench, measures
from tests.bench.made_up import live_report


def received(*rows: tuple[int, int, int, int, int]) -> measures.Received:
    return np.array(rows, np.int64)


def test_every_goal_has_its_ratio_and_peers_that_are_missing_have_none() -> None:
    assert set(live_report()["ratios"]) == set(bench.GOALS)
    missing = {f"p99_vs_{peer}_10k" for peer in bench.PEERS}
    assert set(live_report(peers=False)["ratios"]) == set(bench.GOALS) - missing


def test_latency_is_of_the_rows_that_were_produced_in_a_span() -> None:
    told = received((5_000, 1_000, 1, 1, 1), (9_000, 2_000, 1, 2, 2), (9_500, 4_000, 2, 1, 1))
    some = measures.latency(measures.between(told, 1_000, 4_000))
    assert (some.messages, some.max_ms) == (2, 7.0)
    assert np.isnan(measures.latency(told[:0]).p99_ms)


def test_bins_go_by_when_rows_were_produced() -> None:
    told = received((104_000, 100_000, 1, 1, 1), (260_000, 210_000, 1, 2, 2))
    assert measures.by_bin(told, 0, 4) == [None, 4.0, 50.0, None]


def test_a_backlog_is_counted_by_rows_not_by_messages() -> None:
    """Each message of one key stands for a hundred rows, one millisecond apart."""
    told = received(*((1_000 * n, 0, 7, 100 * n, 0) for n in range(1, 101)))
    assert measures.drained_per_s(told, 10_000) == pytest.approx(100_000)
    assert measures.drained_per_s(told, 20_000) == 0.0


def test_the_last_update_of_a_key_counts() -> None:
    told = received((1, 0, 5, 1, 10), (2, 0, 5, 2, 30), (3, 0, 6, 1, 1))
    assert measures.final(told) == {5: (2, 30), 6: (1, 1)}
