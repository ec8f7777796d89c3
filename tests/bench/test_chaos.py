"""The chaos bench without a query: schedules, orders, the oracle, metrics."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.faults import FAULT_POINTS, InjectedFault, armed, point
from penstock.state.store.files import Files
from penstock.testing import Fault
from penstock_bench.chaos import oracle
from penstock_bench.chaos.bench import GOALS
from penstock_bench.chaos.kinds import KINDS, AtPoint, ForAWhile
from penstock_bench.chaos.load import (
    DELAY_MS,
    WINDOW_MS,
    ChaosRows,
    arrivals,
    group_of,
)
from penstock_bench.chaos.oracle import LogReader, SparkLog, difference, expected
from penstock_bench.chaos.orders import POINTS, FaultOrder, OrderBook, Ordered, OrderedClock
from penstock_bench.chaos.schedule import ChaosPlan, schedule
from penstock_bench.live.latency import Began
from tests.bench.made_up import chaos_report

PLAN = ChaosPlan(seed=5, seconds=60)


def test_a_seed_makes_a_schedule() -> None:
    assert schedule(PLAN) == schedule(PLAN)
    assert schedule(PLAN) != schedule(ChaosPlan(6, 60))
    long = schedule(ChaosPlan(1, 1500))
    assert len(long) > 1000
    at_s = [due.at_s for due in long]
    assert at_s == sorted(at_s)
    assert at_s[0] >= 5 > at_s[-1] - 1490
    # the start of a JVM is slow, so fewer than one fault in a hundred needs one
    deaths = [due for due in long if "process" in KINDS[due.kind].needs]
    assert 5 <= len(deaths) < len(long) / 100
    alone = schedule(ChaosPlan(1, 1500, allows=()))
    assert not any(KINDS[due.kind].needs for due in alone)


def test_every_fault_point_has_a_kind() -> None:
    points = {kind.point for kind in KINDS.values() if isinstance(kind, AtPoint | ForAWhile)}
    assert points == set(FAULT_POINTS) | {"burst.work"}


def test_faults_of_functions_come_in_bursts() -> None:
    for due in schedule(ChaosPlan(3, 600)):
        if "burst" in KINDS[due.kind].needs:
            assert PLAN.bursting(due.at_s)
            assert arrivals(PLAN).rate_at(due.at_s % 30) > arrivals(PLAN).rate_at(0)


@pytest.fixture
def book(tmp_path: Path) -> OrderBook:
    book = OrderBook(str(tmp_path / "orders"))
    book.open()
    return book


@pytest.fixture
def obeying(book: OrderBook) -> Iterator[None]:
    faults = [Fault(name, Ordered(book, name), hits=()) for name in POINTS]
    with armed(*faults, Fault("driver.clock", OrderedClock(book), hits=())):
        yield


@pytest.mark.usefixtures("obeying")
def test_an_order_is_obeyed_once_and_noted(book: OrderBook) -> None:
    point("driver.sealed", epoch=1, run=0)
    book.put("driver.sealed", FaultOrder(7, "raise"))
    point("driver.written", epoch=2, run=0)
    with pytest.raises(InjectedFault, match="epoch=2"):
        point("driver.sealed", epoch=2, run=0)
    point("driver.sealed", epoch=2, run=1)
    happened = book.happened()
    assert happened.keys() == {7}
    assert (happened[7]["epoch"], happened[7]["pid"]) == (2, os.getpid())


@pytest.mark.usefixtures("obeying")
def test_an_order_that_lasts_is_obeyed_for_a_while(book: OrderBook) -> None:
    book.put("store.write", FaultOrder(3, "ENOSPC", for_s=60.0))
    for _ in range(3):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            point("store.write", file="manifest")
    [taken] = Path(book.folder, "store.write").iterdir()
    os.utime(taken, (0, 0))
    point("store.write", file="manifest")
    assert book.happened().keys() == {3}


@pytest.mark.usefixtures("obeying")
def test_an_order_that_was_withdrawn_never_happened(book: OrderBook) -> None:
    book.put("host.seal", FaultOrder(1, "kill"))
    book.withdraw("host.seal", 1)
    point("host.seal", host="sum/0", step="sum", epoch=1, run=0)
    assert not book.happened()


@pytest.mark.usefixtures("obeying")
def test_a_clock_goes_back_and_forth(book: OrderBook) -> None:
    assert point("driver.clock") == 0.0
    book.set_clock(4, -300.0)
    assert [point("driver.clock") for _ in range(2)] == [-300.0, -300.0]
    book.set_clock(5, 20.0)
    assert point("driver.clock") == 20.0
    assert book.happened().keys() == {4, 5}


def log(*ends: int) -> SparkLog:
    return SparkLog({n: (end,) for n, end in enumerate(ends)}, Began(1_000_000, 50), len(ends) - 1)


def test_the_oracle_counts_each_row_once() -> None:
    """The oracle agrees with a count of the rows one by one."""
    epochs = expected(PLAN, log(25, 50, 1200, 1200, 4000, 4100, 5000))
    number = np.arange(5000)
    t_us = np.concatenate([np.zeros(50, np.int64), arrivals(PLAN).arrival_us(np.arange(4950))])
    at_ms, k, v = ChaosRows().numbers(number, t_us)
    watermark_ms = int(at_ms[:4100].max()) - DELAY_MS
    closed = (at_ms // WINDOW_MS + 1) * WINDOW_MS <= watermark_ms
    assert not closed[4100:].any(), "no row is late"
    newest: dict[int, tuple[int, ...]] = {}
    for epoch in range(7):
        newest |= {row[0]: row[1:] for row in epochs[epoch]}
    for group in range(12):
        of = closed & (group_of(k) == group)
        windows = set(zip(k[of].tolist(), (at_ms[of] // WINDOW_MS).tolist(), strict=True))
        assert newest[group] == (len(windows), int(of.sum()), int(v[of].sum()))
    assert [bool(epochs[epoch]) for epoch in range(4)] == [False, False, False, True]


def test_lost_and_duplicated_rows_are_reported() -> None:
    right = expected(PLAN, log(25, 50, 1200, 4000))
    assert difference(right, right).first == ""
    row = min(right[3])
    without = right | {3: right[3] - Counter([row])}
    assert (difference(right, without).lost, difference(right, without).duplicated) == (1, 0)
    twice = right | {3: right[3] + Counter([row])}
    assert (difference(right, twice).lost, difference(right, twice).duplicated) == (0, 1)
    assert str(row) in difference(right, twice).first
    again = right | {4: Counter([row])}
    assert difference(right, again).duplicated == 1


def test_sparks_log_is_read(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".0.crc").touch()
    offset = '{"row": %d, "start_ms": %s, "first": 9}'
    (tmp_path / "offsets/0").write_text(f"v1\n{{}}\n{offset % (9, 'null')}\n0")
    (tmp_path / "offsets/10").write_text(f"v1\n{{}}\n{offset % (20, '77')}\n0")
    reader = LogReader(Files(str(tmp_path)))
    assert reader.read() == SparkLog({}, Began(77, 9), -1)
    (tmp_path / "commits/0").touch()
    (tmp_path / "commits/10").touch()
    assert reader.read() == SparkLog({0: (9,), 10: (20,)}, Began(77, 9), 10)
    assert not oracle.read_sink(tmp_path / "sink")


def test_partitions_of_a_topic_hold_the_watermark_back(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for epoch, (one, other) in enumerate([(30, 30), (1200, 30), (1200, 1200), (1200, 1201)]):
        offset = json.dumps({"chaos": {"1": other, "0": one}})
        (tmp_path / f"offsets/{epoch}").write_text(f"v1\n{{}}\n{offset}\n0")
        (tmp_path / f"commits/{epoch}").touch()
    log = LogReader(Files(str(tmp_path))).read(Began(1_000, 60))
    assert [log.row(epoch) for epoch in range(4)] == [60, 61, 2400, 2400]
    epochs = expected(PLAN, log)
    # the second partition has rows of the load only from the third epoch on
    assert [bool(epochs[epoch]) for epoch in range(4)] == [False, False, False, True]
    whole = expected(PLAN, SparkLog({0: (60,), 1: (2400,), 2: (2401,)}, Began(1_000, 60), 2))
    assert epochs[3] == whole[2]


def test_a_cluster_has_faults_of_its_own() -> None:
    plan = ChaosPlan(4, 1500, allows=("burst", "process", "cluster", "network"))
    groups = {KINDS[due.kind].group for due in schedule(plan)}
    own = {kind.group for kind in KINDS.values() if "cluster" in kind.needs}
    assert own <= groups
    assert not own & {KINDS[due.kind].group for due in schedule(PLAN)}


def test_metrics_of_a_run() -> None:
    report = chaos_report()
    first, *_, last = report["results"]["faults"]
    assert (first["happened_s"], last["happened_s"], last["recovered_s"]) == (5.1, None, None)
    assert first["recovered_s"] == pytest.approx(0.9)
    ratios = report["ratios"]
    assert set(GOALS) < set(ratios)
    assert ratios["faults"] == len(report["results"]["faults"]) - 2
    # a fault at 20.4 s, when the next epochs are done at 23 s and 23.5 s
    assert 2.0 < ratios["recover_p99_s"] <= 3.5
    # lost from when the first row has waited for a second until the last late one is out of the window
    assert 0.90 < ratios["success_during_faults"] < 0.97
