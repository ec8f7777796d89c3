from __future__ import annotations

import logging

import pytest

from penstock.model import SLA, LatencyBound
from penstock.observe.moment import Moment
from penstock.observe.sla_log import SlaLog, SlaWatch
from tests.observe.made_up import START_MS, recording


def lines(moments: list[Moment], caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    log = SlaLog("clicks")
    with caplog.at_level(logging.INFO, "penstock.sla"):
        for moment in moments:
            log.take(moment)
    return caplog.records


def test_a_miss_and_the_recovery_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    missed, kept = lines(recording(60, burst=range(10, 25)).moments(), caplog)
    assert (missed.levelname, kept.levelname) == ("WARNING", "WARNING")
    assert missed.getMessage() == (
        "Query clicks misses its SLA: latency is 1,500 ms, the bound is 1,000 ms; 40 rows wait, hosts: 3."
    )
    assert "keeps its SLA again after 22 s: latency is 200 ms" in kept.getMessage()
    assert vars(missed)["latency_ms"] == 1500
    assert vars(missed)["query"] == "clicks"


def test_a_second_outside_the_bound_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(recording(60, burst=range(10, 12)).moments(), caplog) == []


def test_a_query_without_an_sla_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    moment = Moment(START_MS, 1.0, "running", "running", 1, 10, None, 0, None, 5, 0)
    assert lines([moment] * 20, caplog) == []


def test_misses_in_turn_with_kept_windows_are_one_miss() -> None:
    watch, sla = SlaWatch(), SLA(1000, 1000)
    told = [watch.judge(sla, missed=n % 2, kept=1 - n % 2) for n in range(1, 60)]
    assert [change for change in told if change] == ["missed"]


@pytest.mark.parametrize(("window_ms", "windows"), [(100, 30), (1_000, 3), (60_000, 1)])
def test_windows_of_any_length_are_judged_by_time(window_ms: int, windows: int) -> None:
    watch, sla = SlaWatch(), SLA(1000, window_ms)
    told = [watch.judge(sla, missed=1, kept=0) for _ in range(windows)]
    assert told == [None] * (windows - 1) + ["missed"]


def test_each_bound_is_told_with_its_own_figure(caplog: pytest.LogCaptureFixture) -> None:
    more = (LatencyBound(2_500, 1_000, p99=True), LatencyBound(100, 1_000, step="clicks"))
    told = lines(
        recording(60, burst=range(10, 25), sla=SLA(9_000, 1_000, more=more)).moments(), caplog
    )
    of_step, missed, kept = (record.getMessage() for record in told)
    assert (
        "misses its SLA: average latency of step clicks is 120 ms, the bound is 100 ms" in of_step
    )
    assert "misses its SLA: p99 latency is 3,000 ms, the bound is 2,500 ms" in missed
    assert "keeps its SLA again after 22 s: p99 latency is 400 ms" in kept
    assert [vars(record)["figure"] for record in told] == ["mean", "p99", "p99"]
    assert vars(told[0])["step"] == "clicks"


def test_a_bound_on_the_99th_percentile_alone_is_not_compared_with_the_average(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = SLA(2_500, 1_000, p99=True)
    missed, _ = lines(recording(60, burst=range(10, 25), sla=alone).moments(), caplog)
    assert "p99 latency is 3,000 ms, the bound is 2,500 ms" in missed.getMessage()
