from __future__ import annotations

import numpy as np
import pytest

from penstock.model import StepId
from penstock.sim.fleet import SimFleet
from penstock.sim.ledger import Ledger
from penstock.sim.plane import Plane
from penstock.sim.queues import Queues
from penstock.sim.trace import Trace
from tests.sim.exact import exact, then_quiet

DELTA = 100.0


def step(ledger: Ledger, hosts: int, service_rate: float) -> tuple[Queues, SimFleet]:
    plane = Plane(service_rate=service_rate)
    slots = ledger.arrived.shape[1]
    fleet = SimFleet(StepId("sum"), slots, hosts, plane, np.random.default_rng(1))
    return Queues(ledger, fleet), fleet


def bursts(seed: int, length: int = 200, slots: int = 6) -> Trace:
    """A trace of calm times and bursts in turn, uneven over slots, with a quiet time at the end."""
    random = np.random.default_rng(seed)
    rates = random.uniform(20, 150, slots) * np.where(random.random((length, 1)) < 0.2, 4.0, 0.6)
    return then_quiet(Trace.of_rates(rates, DELTA, seed), 60)


@pytest.mark.parametrize("seed", range(4))
def test_latencies_are_those_of_single_records(seed: int) -> None:
    trace = bursts(seed)
    ledger = Ledger(trace.counts, DELTA)
    queues, fleet = step(ledger, hosts=2, service_rate=300.0)
    queues.advance(0, len(trace.counts))
    one_by_one = exact(trace.counts, DELTA, [300.0, 300.0], [fleet.owner] * len(trace.counts))
    mean = ledger.latency.sum(axis=0) / ledger.completed.sum(axis=0)
    true = one_by_one.latency.sum(axis=0) / one_by_one.completed.sum(axis=0)
    assert np.abs(mean - true).max() < 5.0
    # At any time, completed records differ only by the few that hosts are processing.
    ahead = np.cumsum(ledger.completed - one_by_one.completed, axis=0)
    assert np.abs(ahead).max() < 0.1 * 300.0


@pytest.mark.parametrize("seed", range(4))
def test_records_that_wait_go_with_a_slot_that_moves(seed: int) -> None:
    trace = bursts(seed)
    ledger = Ledger(trace.counts, DELTA)
    queues, fleet = step(ledger, hosts=2, service_rate=300.0)
    owners, random = [], np.random.default_rng(seed)
    for m in range(len(trace.counts)):
        if m % 7 == 0:
            fleet.owner = random.integers(0, 2, trace.slots)
        owners.append(fleet.owner)
        queues.advance(m, m + 1)
    one_by_one = exact(trace.counts, DELTA, [300.0, 300.0], owners)
    mean = ledger.latency.sum(axis=0) / ledger.completed.sum(axis=0)
    true = one_by_one.latency.sum(axis=0) / one_by_one.completed.sum(axis=0)
    assert np.abs(mean - true).max() < 0.05 * true.max() + 5.0
    assert np.array_equal(queues.completed, queues.arrived)


def test_every_record_completes_once() -> None:
    trace = bursts(7, length=500)
    ledger = Ledger(trace.counts, DELTA)
    queues, fleet = step(ledger, hosts=3, service_rate=200.0)
    for m in range(len(trace.counts)):
        queues.advance(m, m + 1)
        assert np.all(queues.completed <= queues.arrived + 1e-6)
    # The totals are whole numbers, so that nothing was lost to rounding.
    assert queues.completed.tolist() == trace.counts.sum(axis=0).tolist()
    assert np.allclose(ledger.completed.sum(axis=0), queues.completed, rtol=0, atol=1e-6)
    assert fleet.worked.sum() == pytest.approx(trace.total)


def test_many_time_slots_at_once_give_the_same_as_one_by_one() -> None:
    trace = bursts(3)
    ledgers = [Ledger(trace.counts, DELTA) for _ in range(2)]
    whole, _ = step(ledgers[0], hosts=2, service_rate=250.0)
    whole.advance(0, len(trace.counts))
    bits, _ = step(ledgers[1], hosts=2, service_rate=250.0)
    for m in range(len(trace.counts)):
        bits.advance(m, m + 1)
    assert np.array_equal(ledgers[0].completed, ledgers[1].completed)
    assert np.array_equal(ledgers[0].latency, ledgers[1].latency)
    assert np.array_equal(ledgers[0].histogram, ledgers[1].histogram)


def test_latency_of_a_queue_with_random_arrivals() -> None:
    """M/D/1: service 5 ms, 80 % busy: 5 ms and a wait of 0.8 * 5 / (2 * 0.2) = 10 ms."""
    rate, service_rate = 160.0, 200.0
    trace = Trace.of_rates(np.full((400_000, 1), rate), delta_ms=1.0, seed=5)
    ledger = Ledger(trace.counts, 1.0)
    queues, _ = step(ledger, hosts=1, service_rate=service_rate)
    queues.advance(0, len(trace.counts))
    mean = float(ledger.latency.sum(dtype=np.float64) / ledger.completed.sum())
    assert mean == pytest.approx(15.0, rel=0.1)
    # Little's law: the mean number of records is their rate times their latency. A record in service
    # counts as half, since half of it is done.
    there = np.mean(np.cumsum(ledger.arrived - ledger.completed)) + 0.5 * rate / service_rate
    assert there == pytest.approx(trace.total / 400.0 * mean / 1000.0, rel=0.03)


def test_a_host_that_pauses_does_nothing() -> None:
    trace = then_quiet(Trace.of_rates(np.full((20, 1), 100.0), DELTA), 2)
    ledger = Ledger(trace.counts, DELTA)
    queues, fleet = step(ledger, hosts=1, service_rate=1000.0)
    fleet.paused_ms = np.array([350.0])
    queues.advance(0, len(trace.counts))
    assert ledger.completed[:3].sum() == 0
    assert 0 < ledger.completed[3].sum() <= 50
    # Arrivals of 350 ms, and those that come meanwhile, are processed at 1 per ms from 350 ms to
    # 388.9 ms. These 38.9 records waited for 175 ms on average, the last 1.1 not at all.
    mean = ledger.latency[3, 0] / ledger.completed[3, 0]
    assert mean == pytest.approx((38.89 * 175.5 + 1.11 * 1.0) / 40.0, abs=0.1)
    assert queues.completed.tolist() == [200.0]


def test_ages_from_earlier_steps_are_added() -> None:
    trace = then_quiet(Trace.of_rates(np.full((10, 1), 100.0), DELTA), 1)
    ages = np.full(len(trace.counts), 250.0)
    ledger = Ledger(trace.counts, DELTA, ages)
    queues, _ = step(ledger, hosts=1, service_rate=1000.0)
    queues.advance(0, len(trace.counts))
    assert ledger.carried.sum() == pytest.approx(100 * 250.0)
    assert ledger.latency.sum() == pytest.approx(100 * 1.0)
    assert ledger.series().mean_ms[0] == pytest.approx(251.0)
    assert ledger.series().p99_ms[0] == pytest.approx(251.0, rel=0.1)
