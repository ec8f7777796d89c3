"""Laws of the offloading policy that hold for any load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.treat.offloading import Offloading, OffloadSettings
from penstock.offload.policy.offloader import Offloader
from tests.offload.policy.loop import BOUNDS, CAPACITY, host_load, seen, switches

_LOADS = st.lists(st.floats(0.0, 12.0), min_size=1, max_size=40)
_SETTINGS = st.builds(
    OffloadSettings,
    at_most=st.integers(0, 60),
    speed=st.floats(0.2, 2.0),
    partials_per_row=st.floats(0.0, 1.2),
    deadline_ms=st.sampled_from([None, 250.0, 10_000.0]),
    patience_ms=st.sampled_from([5_000.0, 120_000.0]),
)


def _follow(
    offloader: Offloader,
    loads: list[float],
    weights: np.ndarray,
    hosts: int,
    every_ms: float,
    from_ms: float = 0.0,
) -> list[Offloading]:
    """Like `follow`, with slots of unequal weight: the load is that of the whole step."""
    rates = [load * hosts * CAPACITY * weights / weights.sum() for load in loads]
    return [
        offloader.decide(seen(rate, hosts), BOUNDS, from_ms + n * every_ms)
        for n, rate in enumerate(rates)
    ]


@settings(deadline=None, max_examples=30)
@given(_LOADS, _SETTINGS, st.integers(1, 4), st.integers(0, 99), st.floats(200.0, 5_000.0))
def test_shares_are_valid_and_end_with_the_burst(
    loads: list[float], made: OffloadSettings, hosts: int, seed: int, every_ms: float
) -> None:
    weights = np.random.default_rng(seed).pareto(1.2, 4 * hosts) + 0.01
    # Calm, for the busiest host too.
    calm = 0.5 * weights.sum() / hosts / max(map(np.sum, np.split(weights, hosts)))
    offloader = Offloader(made)
    decisions = _follow(offloader, [calm] * 5 + loads, weights, hosts, every_ms)
    for decision in decisions:
        assert np.all((decision.shares >= 0) & (decision.shares <= 1))
        assert 0 <= decision.workers <= made.at_most
        assert 0 <= decision.warm <= made.at_most
        assert decision.carries == (decision.workers > 0)
        assert decision.backlog >= 0
        assert not (decision.holds and decision.lasts)
    after = _follow(offloader, [calm] * 80, weights, hosts, every_ms, len(decisions) * every_ms)
    assert not after[-1].carries
    assert not after[-1].lasts
    assert not after[-1].holds
    assert after[-1].backlog == 0


@settings(deadline=None, max_examples=20)
@given(st.floats(1.0, 10.0), st.integers(1, 4), st.floats(0.3, 2.0), st.floats(0.0, 0.5))
def test_a_burst_that_stays_leaves_hosts_stable(
    load: float, hosts: int, speed: float, partials: float
) -> None:
    made = OffloadSettings(speed=speed, partials_per_row=partials, at_most=1000)
    decisions = _follow(Offloader(made), [0.5] * 5 + [load] * 40, np.ones(12), hosts, 1_000.0)
    least = partials * load  # a host must merge all results of functions
    vitals = seen(np.full(12, load * hosts * CAPACITY / 12), hosts)
    assert host_load(vitals, decisions[-1]).max() <= max(0.8, least) + 1e-9
    if least < 0.6:
        assert host_load(vitals, decisions[-1]).max() >= 0.6
    busy = decisions[-1].redirected / (decisions[-1].workers * speed * CAPACITY)
    assert busy <= 0.8


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7, 0.76])
@pytest.mark.parametrize(("every_ms", "hosts", "seed"), [(250.0, 1, 1), (250.0, 3, 2), (1e3, 4, 3)])
def test_noise_brings_no_burst_workers(load: float, seed: int, every_ms: float, hosts: int) -> None:
    """Arrivals are Poisson, measured over a sliding window of a second."""
    random, parts = np.random.default_rng(seed), round(1_000.0 / every_ms)
    arrived = random.poisson(load * hosts * CAPACITY / 12 / parts, (300, 12))
    offloader = Offloader()
    decisions = []
    for n in range(parts, 300):
        vitals = seen(arrived[n - parts : n].sum(axis=0).astype(np.float64), hosts)
        newest = replace(vitals, newest_rate=arrived[n - 1] * float(parts), newest_ms=every_ms)
        decisions.append(offloader.decide(newest, BOUNDS, n * every_ms))
    # The first seconds are too few to estimate the noise.
    assert switches(decisions[40:]) == 0
    assert len({decision.warm for decision in decisions[60:]}) <= 3


@pytest.mark.parametrize("load", [0.78, 0.8, 0.82])
@pytest.mark.parametrize(("noise", "seed"), [(0.0, 1), (0.03, 2), (0.1, 3)])
def test_at_the_limit_burst_workers_do_not_flap(load: float, noise: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    loads = (load * (1 + noise * random.standard_normal(600))).tolist()
    decisions = _follow(Offloader(), loads, np.ones(8), 2, 1_000.0)
    assert switches(decisions) <= 10


@pytest.mark.parametrize(("load", "seed"), [(2.0, 1), (4.0, 2), (8.0, 3)])
def test_within_a_noisy_burst_shares_are_seldom_changed(load: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rates = random.poisson(load * CAPACITY / 4, (100, 8)).astype(np.float64)
    offloader = Offloader()
    decisions = [
        offloader.decide(seen(rate if n > 5 else np.full(8, 100.0), 2), BOUNDS, 1_000.0 * n)
        for n, rate in enumerate(rates)
    ]
    assert switches(decisions) == 1
    assert sum(bool(decision.reasons) for decision in decisions[20:]) <= 5


def test_decisions_depend_on_the_inputs_alone() -> None:
    loads = np.random.default_rng(3).uniform(0, 4, 100).tolist()
    twice = [_follow(Offloader(), loads, np.arange(1.0, 9.0), 2, 700.0) for _ in range(2)]
    for one, other in zip(*twice, strict=True):
        assert one.shares.tolist() == other.shares.tolist()
        assert (one.workers, one.reasons) == (other.workers, other.reasons)
