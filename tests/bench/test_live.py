"""Metrics of `penstock bench live`, computed from the messages of a consumer."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.live import bench, measures
from penstock_bench.live.arena import PEERS
from penstock_bench.live.parts import sla
from tests.bench.made_up import live_report, live_results


def received(*rows: tuple[int, int, int, int, int]) -> measures.Received:
    return np.array(rows, np.int64)


def test_every_goal_has_its_ratio_and_missing_peers_have_none() -> None:
    assert set(live_report()["ratios"]) >= set(bench.GOALS)
    missing = {f"p99_vs_{peer}_10k" for peer in PEERS}
    assert set(bench.GOALS) - set(live_report(peers=False)["ratios"]) == missing


def test_a_report_keeps_the_results_of_parts_that_are_not_run_again() -> None:
    whole = live_report()
    again = live_results()["sla"]
    again["steady"] = again["steady"] | {"success": 0.5}
    merged = bench.merged(whole, bench.report({"sla": again}))
    assert merged.settings["parts"] == list(bench.PARTS)
    assert merged.results["migration"] == whole["results"]["migration"]
    assert merged.ratios == whole["ratios"] | {"sla_50ms_steady": 0.5}
    alone = bench.report({"sla": again})
    assert set(alone.ratios) == {"sla_50ms_steady", "sla_50ms_through_move"}
    assert {"commit", "dirty", "date", "quick", "settings"} == set(alone.results["sla"]["run"])


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SettingError, match="no part nosuch"):
        bench.run(print, quick=True, part=["nosuch"])


def test_ratios_of_the_papers_experiments() -> None:
    ratios = live_report()["ratios"]
    assert ratios["peak_pause_over_lazy_5gb"] == pytest.approx(5000 / 22)
    assert ratios["peak_lazy_over_steady_5gb"] == pytest.approx(2.0)
    assert ratios["burst_p99_vs_overprovisioned"] == pytest.approx(2.0)
    assert ratios["transactional_p99_over_interval"] == 1.5
    assert ratios["hotspot_max_over_mean"] == 1.1
    assert ratios["possible_exchange_opening"] == 0.97


def test_an_sla_is_judged_by_receipt() -> None:
    """1,000 rows per second for 4 s; those of the third second are 200 ms late."""
    sent = np.arange(4_000) * 1_000 + 1_000_000_000
    late = (sent >= 1_002_000_000) & (sent < 1_003_000_000)
    key = np.arange(4_000) % 500
    messages = np.stack([sent + 5_000 + 200_000 * late, sent, key, key, key], axis=1)
    judged = sla.judged(messages, 1_000_000_000, 4.0)
    # a window fails if more than a quarter of its rows are late: all but 19 of 40
    assert judged["success_of_all"] == pytest.approx(1 - 16 / 40, abs=0.06)
    assert judged["success"] < 0.7
    assert sla.judged(messages, 1_000_000_000, 2.0)["success"] == 1.0


def test_latency_is_of_the_rows_that_were_produced_in_a_span() -> None:
    messages = received((5_000, 1_000, 1, 1, 1), (9_000, 2_000, 1, 2, 2), (9_500, 4_000, 2, 1, 1))
    some = measures.latency(measures.between(messages, 1_000, 4_000))
    assert (some.messages, some.max_ms) == (2, 7.0)
    assert np.isnan(measures.latency(messages[:0]).p99_ms)


def test_bins_are_by_produce_time() -> None:
    messages = received((104_000, 100_000, 1, 1, 1), (260_000, 210_000, 1, 2, 2))
    assert measures.by_bin(messages, 0, 4) == [None, 4.0, 50.0, None]


def test_a_backlog_is_counted_by_rows_not_by_messages() -> None:
    """Each message of one key stands for a hundred rows, one millisecond apart."""
    messages = received(*((1_000 * n, 0, 7, 100 * n, 0) for n in range(1, 101)))
    assert measures.drained_per_s(messages, 10_000) == pytest.approx(100_000)
    assert measures.drained_per_s(messages, 20_000) == 0.0


def test_the_last_update_of_a_key_counts() -> None:
    messages = received((1, 0, 5, 1, 10), (2, 0, 5, 2, 30), (3, 0, 6, 1, 1))
    assert measures.final(messages) == {5: (2, 30), 6: (1, 1)}
