"""Loads of live trials: their lead-in, and the latencies of records computed from the output."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.driver.progress import EpochProgress, HostProgress
from penstock.model import SLA
from penstock.operators.process.processor import KeyedProcessor
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Steady
from penstock.sim.skews import skew
from penstock.state.variables.values import Row
from penstock_bench.live.load import Load, Records, as_fast_as, followed, led
from penstock_bench.live.parts import hotspots, migration, switch
from penstock_bench.live.receipts import Columns, Receipts, done_us, ordinals
from penstock_bench.live.trial import SLOTS
from penstock_bench.workloads.shaped import KeyedRows
from penstock_bench.workloads.tally import (
    Dial,
    TallyByKey,
    TallyFeed,
    TallyLoad,
    TallyProcessor,
    drawn_keys,
)


def sums(keys: int = 1_500, rate: float = 100.0) -> Load:
    content = KeyedRows(keys, skew("uniform"), SLOTS)

    def records(number: Numbers, t_us: Numbers) -> Records:
        return Records(np.arange(len(number)), content.chosen_keys(number, t_us))

    return Load(Steady(rate), content, records, content.slots_of, Columns("k", "n"))


def test_a_load_begins_after_its_lead_in(tmp_path: Path) -> None:
    source = led(sums(), lead_s=2.0, gate=tmp_path / "gate")
    arrivals = source.arrivals
    times = arrivals.arrival_us(np.arange(400))
    assert (np.diff(times) > 0).all()
    # 200 rows of the lead-in, then the load's first row a hundredth of a second after its beginning
    assert arrivals.cumulative(np.array([1_999, 2_000, 2_010, 3_000])).tolist() == [
        199,
        200,
        201,
        300,
    ]
    assert int(times[200]) == 2_010_000
    assert arrivals.rate_at([0.0, 3.0]).tolist() == [100.0, 100.0]
    reader = source.reader(source.first(["0"]))
    assert (reader.poll(1, 1_000), reader.behind()) == ([], 0)
    begun_ms = int(time.time() * 1000) - 60_000
    source.begin(begun_ms)
    assert source.load_ms == begun_ms + 2_000
    (polled,) = reader.poll(1, 1_000)
    assert polled.position == {"row": 1_000, "start_ms": begun_ms}
    assert polled.batch.column("arrival")[200].value == (begun_ms + 2_010) * 1000


def test_latencies_of_records_follow_from_the_counts_in_the_output(tmp_path: Path) -> None:
    load = sums()
    source = led(load, lead_s=1.0, gate=tmp_path / "gate")
    source.begin(500_000)
    number = np.arange(300)
    key = load.records(number, source.arrivals.arrival_us(number)).key
    at_us = 500_000_000 + source.arrivals.arrival_us(number)
    # each is received 7 ms after it arrived, except the very last one
    received = np.stack([at_us + 7_000, key, ordinals(key)], axis=1)[:-1]
    truth = followed(load, source, received, SLOTS, 2.0)
    assert truth.row_ms[:-1] == pytest.approx(np.full(len(truth.row_ms) - 1, 7.0))
    assert len(truth.row_ms) == 199
    assert truth.success(SLA(100, 1000), 0).mean() == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_done_times_agree_with_a_search_through_all_receipts(seed: int) -> None:
    """Some receipts cover several records, and some are repeated."""
    chance = np.random.default_rng(seed)
    key = chance.integers(0, 12, 300)
    order, at, receipts = ordinals(key), np.sort(chance.integers(0, 10_000, 300)), []
    for n in np.flatnonzero(chance.random(300) < 0.6).tolist():
        receipts.append((at[n], key[n], order[n]))
        if chance.random() < 0.2:
            receipts.append((at[n] + 3_000, key[n], order[n]))
    received = np.array(receipts, np.int64)
    chance.shuffle(received)
    done = done_us(key, received)
    for n in range(300):
        times = [when for when, k, count in received if k == key[n] and count >= order[n]]
        assert done[n] == min(times) if times else np.isnan(done[n])
    assert np.isnan(done_us(key, received[:0])).all()


def test_receipts_are_kept_in_files(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path), Columns("k", "n"))
    assert len(receipts.received()) == 0
    receipts(pa.record_batch({"k": [5, 6], "n": [1, 2]}), None)
    receipts(pa.record_batch({"k": [5], "n": [2]}), None)
    assert receipts.received()[:, 1:].tolist() == [[5, 1], [6, 2], [5, 2]]


def test_one_queue_is_the_upper_bound() -> None:
    """A burst of 4 times the capacity for a second: the backlog takes 3 s more."""
    t_us = np.concatenate([np.arange(100) * 10_000, 1_000_000 + np.arange(400) * 2_500])
    done = as_fast_as(t_us, rate=100.0)
    assert done[:100] == pytest.approx(t_us[:100] / 1000 + 10)
    assert done[-1] == pytest.approx(5_000)
    assert (np.diff(done) > 0).all()


def test_words_and_orders_show_which_records_are_done() -> None:
    words = pa.record_batch({"word": ["ce", "ba"], "n": [4, 9]})
    assert [some.tolist() for some in switch.counted_words(words)] == [[1, 0], [4, 9]]
    orders = pa.record_batch(
        {"stock": [7, 7, 8], "event": ["trade", "taken", "taken"], "quantity": [100, 3, 5]}
    )
    assert [some.tolist() for some in switch.taken_orders(orders)] == [[7, 8], [3, 5]]


def test_an_auction_outputs_its_number_of_orders() -> None:
    from penstock.testing import ProcessorTester
    from penstock_bench.workloads.exchange.auction import ORDER_COLUMNS

    tester = ProcessorTester(switch.TimedAuction(), "stock long, " + ORDER_COLUMNS, key="stock")
    first = tester.feed([(7, 1, 7, "sell", 1050, 400), (7, 2, 8, "buy", 1060, 500)])
    assert [(row.event, row.quantity) for row in first] == [("trade", 400), ("taken", 2)]
    assert tester.feed([(7, 3, 9, "buy", 900, 100)])[-1].quantity == 3


def test_every_scenario_makes_its_load(tmp_path: Path) -> None:
    for scenario in switch.QUICK:
        load, flow = switch.LOADS[scenario.name](scenario)
        number = np.arange(50)
        row, key = load.records(number, load.arrivals.arrival_us(number))
        assert len(row) == len(key) >= 50
        slots = load.slots_of(key)
        assert ((slots >= 0) & (slots < SLOTS)).all()
        plan = switch.controlled(flow(led(load, 1.0, tmp_path)), scenario).plan
        assert {step.id for step in plan.keyed} == set(scenario.paces) == set(scenario.hosts)
    assert switch.bids_by_auction(led(switch.bids("steady(10)"), 1.0, tmp_path)).plan.keyed


def test_keys_arrive_when_the_dial_is_turned_and_updates_at_their_time(tmp_path: Path) -> None:
    dial = tmp_path / "dial"
    feed = TallyFeed(TallyLoad(keys=100, rate=1_000, payload=5, keys_at_once=60), dial)
    Dial(keys=False).turn(dial)
    reader = feed.reader(feed.first(["0"]))
    assert reader.poll(5, 1_000) == []
    Dial().turn(dial)
    (first,), (rest,) = reader.poll(300, 1_000), reader.poll(300, 1_000)
    assert (first.batch.num_rows, rest.batch.num_rows, rest.position) == (60, 40, {"row": 100})
    assert reader.poll(5, 1_000) == []
    Dial(start_ms=0).turn(dial)
    (updates,) = reader.poll(300, 50)
    assert updates.batch.column("k").to_pylist() == drawn_keys(np.arange(50), 100, 0.0).tolist()
    (again,) = feed.reader({"0": {"row": 120}}).poll(300, 30)
    assert again.batch.column("k").to_pylist() == updates.batch.column("k").to_pylist()[20:]


@pytest.mark.parametrize("tally", [TallyProcessor(), TallyByKey()])
def test_a_tally_counts_new_and_known_keys(tally: KeyedProcessor) -> None:
    from penstock.testing import ProcessorTester

    tester = ProcessorTester(tally, "k long, payload int", key="k")
    tester.feed([(1, 4), (2, 4)])
    assert sorted(tester.feed([(3, 0), (1, 0), (1, 0)])) == [(1, 3), (3, 1)]
    payload = tester.peek("payload", 2)
    assert isinstance(payload, Row)
    assert len(payload.bytes) == 4


def test_rows_of_an_epoch_are_spread_over_its_time() -> None:
    epochs = [
        EpochProgress(
            *(number, 1, 0, 1, 1500 * number, 1.0, 1.0, None, None, 0),
            hosts=(HostProgress("sum/0", 0, 0, 30, 1.0), HostProgress("sum/1", 0, 0, 15, 1.0)),
        )
        for number in range(5)
    ]
    assert hotspots.by_host(epochs, 4) == {"sum/0": [20.0] * 4, "sum/1": [10.0] * 4}


def test_moves_are_measured_by_the_receipts() -> None:
    assert migration.FULL.strategies[-2:] == (migration.LAZY, migration.TRICKLE)
    moves = [
        {"size": "5gb", "strategy": "lazy(0)", "peak_ms": 20.0, "steady_ms": 10.0},
        {"size": "5gb", "strategy": "pause", "peak_ms": 4_000.0, "steady_ms": 10.0},
    ]
    assert migration.ratios({"moves": moves}) == {
        "peak_pause_over_lazy_5gb": 200.0,
        "peak_lazy_over_steady_5gb": 2.0,
    }
