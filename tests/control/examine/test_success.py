from __future__ import annotations

import numpy as np
import pytest

from penstock.control.examine.success import FlowMeter, SlotMeter, Success, Windows
from penstock.model import LatencyBound


def test_a_p99_bound_is_kept_if_each_epoch_of_the_window_keeps_it() -> None:
    average, p99 = (FlowMeter(LatencyBound(1000, 1000, p99=p99)) for p99 in (False, True))
    for second, latency_ms in enumerate((100.0, 100.0, 100.0, 100.0)):
        for meter in (average, p99):
            meter.take(1000.0 * second, 100, latency_ms)
            meter.take(1000.0 * second + 500, 1, 1_500.0)
    assert (average.windows, average.kept) == (3, 3)
    assert (p99.windows, p99.kept) == (3, 0)


def test_a_stall_is_missed_in_all_its_windows_and_a_pause_is_kept() -> None:
    meter = FlowMeter(LatencyBound(1000, 1000))
    meter.take(0.0, 10, 100.0)
    meter.take(10_000.0, 10, 9_000.0)  # these rows came at 1 s
    assert (meter.windows, meter.kept) == (9, 2)
    meter.take(30_500.0, 10, 200.0)  # nothing came in between
    assert (meter.windows, meter.kept) == (30, 22)


def test_rates_of_the_last_minute_forget_earlier_ones() -> None:
    windows = Windows(3)
    for second in range(3 * 3_600):
        windows.add(1000.0 * second, 1, np.array([True, second >= 3_600, second >= 10_000]))
    assert windows.rates(0) == Success(1.0, 1.0, 1.0)
    assert windows.rates(1).run == pytest.approx(2 / 3)
    assert windows.rates(1).hour == 1.0
    assert windows.rates(2).minute == 1.0
    assert windows.rates(2).hour == pytest.approx(800 / 3_600)
    assert windows.by_place() == [windows.rates(place) for place in range(3)]
    assert [place.run for place in windows.by_place()] == pytest.approx([1.0, 2 / 3, 800 / 10_800])
    windows.renumber(np.array([2, 0, 0]))
    assert windows.by_place()[1:] == [Success(1.0, 1.0, 1.0)] * 2


def test_slots_are_judged_once_a_window() -> None:
    meter = SlotMeter(2)
    assert [meter.due(ms, 1000.0) for ms in (0.0, 400.0, 1_100.0, 1_500.0, 4_200.0)] == [
        0,
        0,
        1,
        0,
        3,
    ]
    meter.take(np.ones(2), np.array([200.0, 1_200.0]))
    meter.judge(1_100.0, 1, np.zeros(2), 1000.0)
    meter.judge(4_200.0, 3, np.array([0.0, 3_000.0]), 1000.0)
    assert [slot.run for slot in meter.counts.by_place()] == [1.0, 0.0]
    assert meter.counts.windows == 4


def test_a_slot_keeps_a_p99_bound_if_one_record_in_a_hundred_is_late() -> None:
    meter, records = SlotMeter(3, p99=True), np.array([1_000.0, 1_000.0, 0.0])
    meter.take(records, records)  # of before the first window
    assert meter.due(0.0, 1000.0) == 0
    for late in ([4.0, 4.0, 0.0], [16.0, 17.0, 0.0]):  # two epochs in one window
        meter.take(records, np.array(late))
    meter.judge(1_000.0, meter.due(1_000.0, 1000.0), np.array([0.0, 0.0, 900.0]), 500.0)
    assert [slot.run for slot in meter.counts.by_place()] == [1.0, 0.0, 0.0]


def test_slots_that_are_split_begin_with_what_was_taken_in() -> None:
    meter = SlotMeter(1)
    assert meter.due(0.0, 1000.0) == 0
    meter.take(np.ones(1), np.array([2_000.0]))
    meter.renumber(np.array([0, 0]))
    meter.judge(1_000.0, meter.due(1_000.0, 1000.0), np.zeros(2), 1000.0)
    assert [slot.run for slot in meter.counts.by_place()] == [0.0, 0.0]


def test_a_clock_that_is_set_costs_nothing() -> None:
    meter, flow = SlotMeter(2), FlowMeter(LatencyBound(1000, 1000))
    assert [meter.due(ms, 1000.0) for ms in (50_000.0, 1_000.0, 2_500.0)] == [0, 0, 1]
    year_ms = 365 * 86_400_000.0
    meter.judge(year_ms, meter.due(year_ms, 1000.0), np.zeros(2), 1000.0)
    assert meter.counts.rates().run == 1.0
    for done_ms in (10_000.0, 5_000.0, 10_500.0, 11_500.0, year_ms):
        flow.take(done_ms, 10, 100.0)
    assert flow.kept == flow.windows > 1_000_000
