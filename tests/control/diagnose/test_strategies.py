"""Unit strategies compared with exhaustive searches."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.control.diagnose.load import Load, service_rates
from penstock.control.diagnose.project import Epochs, Mm1, Projection
from penstock.control.diagnose.strategies import (
    balance,
    best_balance,
    best_scale_in,
    best_scale_out,
    best_spread,
    scale_in,
    scale_out,
)
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, after, new_host
from penstock.model import SLA, StepId

_BOUNDS = Bounds(SLA(1000, 1000))

seeds = st.integers(0, 2**32 - 1)
projections = st.sampled_from([Mm1(), Epochs()])


def _load(rng: np.random.Generator, busy: float, projection: Projection) -> Load:
    """A random load of some slots on hosts of different speeds. Rates are whole, so that there are ties."""
    hosts, slots = int(rng.integers(2, 7)), int(rng.integers(1, 25))
    served = rng.choice([50.0, 100.0, 150.0], hosts)
    rates = np.round(rng.gamma(1.0, busy * 100.0 * hosts / slots, slots))
    owner = rng.integers(0, hosts, slots)
    return Load(
        owner,
        rates,
        np.where(rng.random(slots) < 0.1, np.nan, rng.integers(1, 5, slots) * 10.0),
        np.bincount(owner, rates, hosts).astype(np.float64),
        projection.capacity(served, _BOUNDS),
        projection.gain(served, _BOUNDS, 200.0),
    )


def _merged(load: Load, source: int, target: int) -> list[float]:
    """Slacks of the remaining hosts in ascending order, which is the descending order of latencies."""
    then = load.moved(np.flatnonzero(load.owner == source), source, target)
    return sorted(np.delete(then.slack, source).round(9).tolist())


@given(seeds, projections)
@settings(max_examples=200, deadline=None)
def test_no_scale_in_leaves_a_lexicographically_smaller_latency_vector(
    seed: int, projection: Projection
) -> None:
    load = _load(np.random.default_rng(seed), 0.3, projection)
    move = best_scale_in(load)
    assert move is not None
    best = max(_merged(load, *pair) for pair in permutations(range(load.hosts), 2))
    assert _merged(load, move.source, move.target) == best
    assert move.slots.tolist() == np.flatnonzero(load.owner == move.source).tolist()
    then = load.moved(move.slots, move.source, move.target)
    assert move.slack == pytest.approx(then.slack[move.target])


@given(seeds, projections, st.floats(0.0005, 0.02))
@settings(max_examples=200, deadline=None)
def test_the_best_allowed_scale_in_is_chosen(
    seed: int, projection: Projection, floor: float
) -> None:
    load = _load(np.random.default_rng(seed), 0.3, projection)
    allowed = []
    for source, target in permutations(range(load.hosts), 2):
        then = load.moved(np.flatnonzero(load.owner == source), source, target)
        assume(abs(then.slack[target] - floor) > 1e-12)  # skip cases that depend on rounding
        if then.slack[target] >= floor:
            allowed.append(_merged(load, source, target))
    move = best_scale_in(load, floor)
    assert (move is None) == (not allowed)
    if move is not None:
        assert _merged(load, move.source, move.target) == max(allowed)


def _lesser(load: Load, source: int, target: int) -> float:
    return float(min(load.slack[source], load.slack[target]))


@given(seeds, projections)
@settings(max_examples=200, deadline=None)
def test_no_prefix_to_any_target_balances_better(seed: int, projection: Projection) -> None:
    load = _load(np.random.default_rng(seed), 0.8, projection)
    source = int(load.slack.argmin())
    slots, most = load.movable(source)
    best = max(
        (
            _lesser(load.moved(slots[:count], source, target), source, target)
            for target in range(load.hosts)
            if target != source
            for count in range(1, most + 1)
        ),
        default=-np.inf,
    )
    move = best_balance(load, source)
    if move is None:
        assert best <= load.slack[source] + 1e-9
    else:
        then = load.moved(move.slots, source, move.target)
        assert move.slack == pytest.approx(_lesser(then, source, move.target))
        assert move.slack >= best - 1e-9
        assert move.slack > load.slack[source]
        assert len(move.slots) <= most


@given(seeds, projections)
@settings(max_examples=200, deadline=None)
def test_no_prefix_divides_a_host_better(seed: int, projection: Projection) -> None:
    load = _load(np.random.default_rng(seed), 1.5, projection)
    source = int(load.slack.argmin())
    division = best_scale_out(load, source)
    slots, most = load.movable(source)
    if load.rate[source] == 0:
        return
    grown = load.with_host(source)
    best = max(
        (
            _lesser(grown.moved(slots[:count], source, load.hosts), source, load.hosts)
            for count in range(1, most + 1)
        ),
        default=-np.inf,
    )
    if division is None:
        assert best <= load.slack[source] + 1e-9
        return
    _, move = division
    assert move.target == load.hosts
    assert move.slack >= best - 1e-9
    assert 0 < len(move.slots) < np.count_nonzero(load.owner == source)


@given(seeds, projections, st.floats(0.0005, 0.02))
@settings(max_examples=200, deadline=None)
def test_a_spread_empties_one_host_and_leaves_room_on_the_others(
    seed: int, projection: Projection, floor: float
) -> None:
    load = _load(np.random.default_rng(seed), 0.4, projection)
    moves = best_spread(load, floor)
    then = load
    for move in moves:
        then = then.moved(move.slots, move.source, move.target)
    for move in moves:
        assert not np.any(then.owner == move.source)
        assert then.slack[move.target] >= floor - 1e-12
        assert move.slack == pytest.approx(then.slack[move.target])


def test_slots_go_in_the_order_of_their_latency_and_some_stay() -> None:
    rates = np.array([10.0, 10.0, 0.0, 900.0, 950.0, 10.0])
    latency = np.array([30.0, 10.0, 5.0, 1.0, 2.0, np.nan])
    owner = np.zeros(6, dtype=np.int64)
    load = Load(owner, rates, latency, rates.sum(keepdims=True), np.array([800.0]), np.ones(1))
    slots, most = load.movable(0)
    # Slot 2 has no arrivals. Slots 3 and 4 overload any host: the hotter one stays, the other is last.
    assert (slots.tolist(), most) == ([1, 0, 5, 3], 4)


def test_a_host_keeps_one_slot() -> None:
    vitals = Vitals.even(StepId("sum"), [700.0, 300.0], 2, 1000.0)
    assert balance(vitals, _BOUNDS, Mm1()) is None
    assert scale_out(vitals, _BOUNDS, Mm1()) is None


def test_slots_that_do_not_fit_are_skipped() -> None:
    """The first slots that fit have 100/s, the first that do not 600/s. Neither gives an even load."""
    vitals = Vitals.even(StepId("sum"), [100.0, 600.0, 400.0, 0.0, 0.0, 0.0], 2, 1000.0)
    vitals.slot_latency_ms[:] = np.arange(6)
    treatment = balance(vitals, _BOUNDS, Mm1())
    assert treatment is not None
    assert sorted(after(vitals, [treatment]).host_rate.tolist()) == [500.0, 600.0]


def test_an_idle_host_is_divided_by_its_slots() -> None:
    vitals = Vitals.even(StepId("sum"), [0.0] * 5, 1, 1000.0)
    treatment = scale_out(vitals, _BOUNDS, Mm1())
    assert treatment is not None
    assert (treatment.slots, treatment.target) == ((0, 1), new_host(1))


def test_scale_in_counts_the_arrivals_of_the_target_once() -> None:
    """200/s move to a host with 500/s of 800/s: 10 ms. Counted twice, it would seem overloaded."""
    vitals = Vitals.even(StepId("sum"), [200.0, 500.0], 2, 1000.0)
    treatment = scale_in(vitals, _BOUNDS, Mm1())
    assert treatment is not None
    assert treatment.slots in ((0,), (1,))
    assert "10 ms at most" in treatment.reason


def test_the_slow_host_is_removed() -> None:
    vitals = Vitals.even(StepId("sum"), [100.0, 100.0, 100.0], 3, 1000.0)
    vitals.service_rate[1] = 500.0
    treatment = scale_in(vitals, _BOUNDS, Mm1())
    assert treatment is not None
    assert treatment.source == vitals.hosts[1]


def test_a_host_without_work_gets_the_mean_service_rate() -> None:
    vitals = Vitals.even(StepId("sum"), [1.0, 1.0, 1.0], 3, 1000.0)
    vitals.service_rate[:] = (np.nan, 600.0, 800.0)
    rates = service_rates(vitals)
    assert rates is not None
    assert rates.tolist() == [700.0, 600.0, 800.0]
    vitals.service_rate[:] = np.nan
    assert service_rates(vitals) is None
    assert scale_in(vitals, _BOUNDS, Mm1()) is None
