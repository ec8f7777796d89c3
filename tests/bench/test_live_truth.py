"""Exact latencies of all rows of a run, compared with a computation row by row."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress, HostProgress
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Sine, Steady
from penstock.sim.skews import Hotspot
from penstock_bench.live.latency import DELTA_MS, Began, Delivered, delivered, truth
from penstock_bench.switch.outcome import average_hosts, max_over_mean, outcome_of, since
from penstock_bench.switch.scenarios import STEADY, hotspot
from penstock_bench.workloads.shaped import KeyedRows

SLOTS = 8
BEGAN = Began(start_ms=1_000_000, first=60)


def epoch(number: int, rows: int, started_ms: int, sink_ms: float, **hosts: int) -> EpochProgress:
    return EpochProgress(
        epoch=number,
        runs=1,
        rows=rows,
        partitions=2,
        started_ms=started_ms,
        sink_ms=sink_ms,
        seal_ms=10.0,
        latency=None,
        watermark_ms=None,
        dead_letters=0,
        hosts=tuple(HostProgress(f"sum/{n[1:]}", 0, 0, r, r / 2.0) for n, r in hosts.items()),
    )


def back_to_back(shape: Sine | Steady, seconds: int, length_ms: int) -> list[EpochProgress]:
    """A lead-in, then epochs of equal length with the rows that have arrived."""
    epochs = [epoch(0, 20, 999_000, 50.0), epoch(1, 40, 999_500, 50.0)]
    taken = 0
    for number, start in enumerate(range(0, (seconds + 2) * 1000, length_ms), start=2):
        until = int(shape.cumulative(start))
        epochs.append(epoch(number, until - taken, BEGAN.start_ms + start, length_ms - 20.0, h0=5))
        taken = until
    return epochs


@pytest.mark.parametrize("seed", range(3))
def test_every_row_has_its_latency(seed: int) -> None:
    shape, seconds = Sine(base=300, amplitude=200, period_s=7), 9
    content = KeyedRows(500, Hotspot(0.6, 4, 1, 3), SLOTS, seed)

    def slots_of(number: Numbers, t_us: Numbers) -> Numbers:
        return content.slots_of(content.chosen_keys(number, t_us))

    points = delivered(back_to_back(shape, seconds, 350))
    exact = truth(shape, slots_of, SLOTS, BEGAN, points, seconds)
    arrived = np.zeros((seconds * 10, SLOTS))
    completed, latency = np.zeros_like(arrived), np.zeros_like(arrived)
    for number in range(int(shape.cumulative(seconds * 1000 - 1e-3))):
        one = np.array([number])
        t_us = shape.arrival_us(one)
        (slot,) = slots_of(one + BEGAN.first, t_us)
        t_ms = float(t_us[0]) / 1000
        at_ms = next(d.at_ms for d in points if number + BEGAN.first < d.row) - BEGAN.start_ms
        assert exact.row_ms[number] == pytest.approx(at_ms - t_ms)
        arrived[int(t_ms / DELTA_MS), slot] += 1
        if at_ms <= seconds * 1000:
            completed[int(np.ceil(at_ms / DELTA_MS)) - 1, slot] += 1
            latency[int(np.ceil(at_ms / DELTA_MS)) - 1, slot] += at_ms - t_ms
    np.testing.assert_array_equal(exact.arrived, arrived)
    np.testing.assert_array_equal(exact.completed, completed)
    np.testing.assert_allclose(exact.latency_ms, latency)


def test_success_is_lost_while_rows_are_late() -> None:
    shape = Steady(100)

    def one_slot(number: Numbers, t_us: Numbers) -> Numbers:
        return np.zeros_like(number)

    calm = [Delivered(BEGAN.first + 10 * n, BEGAN.start_ms + 100 * n + 50) for n in range(1, 220)]
    exact = truth(shape, one_slot, 1, BEGAN, calm, 20)
    assert exact.success(SLA(1000, 1000), 10).tolist() == [1.0]
    assert exact.mean_ms(5, 15) == pytest.approx(95, abs=2)
    # rows due in the seconds 12 to 15 are three seconds late, and delay those after them
    late = [
        Delivered(d.row, d.at_ms + (3000 if 12_000 <= d.at_ms - BEGAN.start_ms < 15_000 else 0))
        for d in calm
    ]
    held_up = truth(shape, one_slot, 1, BEGAN, _in_order(late), 20)
    # success is lost from when the first row has waited for a second until the last late one has left the
    # window
    assert held_up.success(SLA(1000, 1000), 10)[0] == pytest.approx(1 - 5.9 / 10, abs=0.02)
    assert held_up.success(SLA(1000, 1000), 19)[0] == 1.0


def _in_order(points: list[Delivered]) -> list[Delivered]:
    """No epoch is in the sink before the previous one."""
    times = np.maximum.accumulate([d.at_ms for d in points]).tolist()
    return [Delivered(d.row, at) for d, at in zip(points, times, strict=True)]


def test_rows_that_were_never_delivered_are_not_done() -> None:
    def one_slot(number: Numbers, t_us: Numbers) -> Numbers:
        return np.zeros_like(number)

    exact = truth(Steady(10), one_slot, 1, BEGAN, [Delivered(BEGAN.first + 5, 1_000_700.0)], 3)
    assert np.isnan(exact.row_ms[5:]).all()
    assert exact.completed.sum() == 5
    by_second = exact.by_second(3)
    assert by_second["rate"] == [9.0, 10.0, 10.0]
    assert by_second["mean_ms"][1:] == [None, None]
    # nothing completes for longer than the bound, so windows fail
    assert exact.success(SLA(1000, 1000), 0)[0] < 0.7


def test_hosts_over_time_and_their_balance() -> None:
    scenario = hotspot(0.5, hosts=3, policy="switch", period_s=6)
    epochs = [
        epoch(n, 30, 500_000 + 1000 * n, 900.0, h0=20 if n < 9 else 12, h1=9, h2=9)
        for n in range(-2, 14)
    ]
    counted = since(epochs, 500_000, scenario.seconds)
    assert [one.started_ms for one in counted] == [1000 * n for n in range(12)]
    # 20 of 38 until second 9: the first place's last third is uneven, the second one's is not
    assert max_over_mean(counted, scenario) == [
        pytest.approx(20 * 3 / 38, abs=1e-3),
        pytest.approx(12 * 3 / 30, abs=1e-3),
    ]
    assert average_hosts(counted, 2, 12) == 3.0


def test_an_outcome_has_its_treatments() -> None:
    shape, seconds = Steady(1000), STEADY.seconds
    epochs = back_to_back(shape, seconds, 500)

    def one_slot(number: Numbers, t_us: Numbers) -> Numbers:
        return np.zeros_like(number)

    exact = truth(shape, one_slot, 1, BEGAN, delivered(epochs), seconds)
    move = {"kind": "balance", "slots": "1", "source": "sum/0", "target": "sum/1", "reason": ""}
    journal = [
        Entry(BEGAN.start_ms - 10.0, 1, "sum", "began", "early", {"treatments": [move]}),
        Entry(BEGAN.start_ms + 1_500.0, 9, "sum", "began", "moved", {"treatments": [move, move]}),
        Entry(BEGAN.start_ms + 1_900.0, 9, "sum", "done", "moved", {"treatments": [move, move]}),
    ]
    outcome = outcome_of(STEADY, exact, epochs, journal, BEGAN)
    assert outcome.treatments == {"scale_out": 0, "scale_in": 0, "balance": 2}
    assert outcome.began == [{"at_s": 1.5, "text": "moved"}]
    assert outcome.success == 1.0
    assert (outcome.hosts, outcome.max_over_mean) == (1.0, [])
    assert [round(one.utilisation, 1) for one in outcome.projections] == [0.2, 0.4, 0.6, 0.8]
    # half an epoch of waiting, and one until it is in the sink
    assert outcome.projections[0].measured_ms == pytest.approx(730, abs=20)
    assert len(outcome.by_second["hosts"]) == seconds
