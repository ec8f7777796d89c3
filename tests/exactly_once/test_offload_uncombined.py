"""Burst workers with couriers that combine nothing: each row counts once, and hosts do the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.elastic import Elastic
from penstock.settings import Settings
from tests.exactly_once.test_offload import NAMES, helped_trial, slow_unless
from tests.offload.in_process import WELL, helped
from tests.trials.cluster import PLAIN, SETTINGS, cluster
from tests.trials.stories import GAPS_MS
from tests.trials.trial import FLOWS, Mishap, Turn, hows

SOME = ("sums", "tumbling", "late-session", "top", "distinct")
POINTS = ("host.applied", "courier.offload", "courier.offloaded", "driver.written")
KEYS = 3
ROWS = [[{"k": n % KEYS, "v": n} for n in range(400)], [{"k": 1, "v": n} for n in range(100)]]


@pytest.mark.parametrize(("settings", "records"), [(PLAIN, 500), (SETTINGS, KEYS + 1)])
def test_hosts_take_a_record_for_each_row(tmp_path: Path, settings: Settings, records: int) -> None:
    with cluster(FLOWS["sums"][0], str(tmp_path), settings=settings) as on:
        assert sum(host.rows for host in on.run(ROWS).hosts) == records


def test_burst_workers_combine_what_they_are_given(tmp_path: Path) -> None:
    """Hosts process a record per row that stays, and few records for rows of burst workers."""
    flow = FLOWS["sums"][0]
    with (
        helped(flow, WELL, deadline_ms=10_000) as by,
        cluster(flow, str(tmp_path), settings=PLAIN, helped=by) as on,
    ):
        by.chance = 1.0
        seen, carried = 0, 0
        for _ in range(4):
            progress = on.run(ROWS)
            assert progress.functions is not None
            carried += progress.functions.rows
            assert progress.functions.records <= progress.functions.invocations * KEYS
            taken = sum(host.rows for host in progress.hosts)
            assert taken == 500 - progress.functions.rows + progress.functions.records
            seen += taken
        assert carried > 200
        assert seen < 1800


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_unless(name in SOME[::2])) for name in NAMES]
)
def test_whatever_becomes_of_burst_workers(tmp_path: Path, name: str) -> None:
    with helped_trial(name, tmp_path, hosts=3, settings=PLAIN) as (flow, by):
        for seed in range(6):
            flow.take(Turn(seed, partitions=1 + seed % 3, rows=40, gap_ms=GAPS_MS[seed % 4]))
        flow.check()
        assert by.workers.did["answer"] > 5


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["sums", pytest.param("tumbling", marks=pytest.mark.slow)])
def test_a_fault_at_a_point(tmp_path: Path, point: str, name: str) -> None:
    with helped_trial(name, tmp_path, settings=PLAIN) as (flow, by):
        by.chance = 1.0
        for number, how in enumerate(hows(point)):
            flow.settle()
            flow.take(Turn(number, rows=40))
            flow.take(Turn(9 + number, mishaps=(Mishap(point, how),), rows=40))
            assert flow.fired[point] == number + 1, "the point was not passed"
        flow.check()


@pytest.mark.parametrize(("settings", "records"), [(PLAIN, 500), (SETTINGS, KEYS + 1)])
def test_not_even_the_rows_of_a_hot_key_are_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, records: int
) -> None:
    monkeypatch.setattr(HotKeys, "two_stage", True)
    elastic = Elastic("static(2)")
    with cluster(FLOWS["sums"][0], str(tmp_path), settings=settings, elastic=elastic) as on:
        assert sum(host.rows for host in on.run(ROWS).hosts) == records
