"""Functions and the switch on one step of epochs: who answers a burst, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Work
from penstock.control.policies.switch import Switch
from penstock.control.treat.decision import Bounds, Treatment, is_new
from penstock.control.treat.offloading import OffloadSettings, for_switch, held
from penstock.model import SLA, HostId, StepId
from penstock.offload.policy.offloader import Offloader

_STEP, _SLOTS, _COST_MS, _DELTA_MS = StepId("sum"), 32, 100.0, 100.0
_CAPACITY = 5_000.0
_BOUNDS = Bounds(SLA(1000, 1000), at_most=16)


@dataclass
class _Run:
    """A data plane of epochs, in which functions have a part, under both policies."""

    offloader: Offloader | None
    start_ms: float = 30_000.0
    """What a new host takes to come."""
    merge: float = 0.1
    hosts: tuple[HostId, ...] = (HostId("sum/0"), HostId("sum/1"))
    latency_ms: list[tuple[float, float]] = field(default_factory=list)
    host_count: list[tuple[float, int]] = field(default_factory=list)
    carried: list[tuple[float, bool]] = field(default_factory=list)
    asked_ms: list[float] = field(default_factory=list)
    """When the switch began something."""

    def run(self, rate: Callable[[float], float], until_ms: float) -> _Run:
        random, examiner, switch = np.random.default_rng(1), Examiner(_STEP, _SLOTS, 1000), Switch()
        owner = np.arange(_SLOTS) * len(self.hosts) // _SLOTS
        shares, functions = np.zeros(_SLOTS), 0
        pending: tuple[float, Sequence[Treatment]] | None = None
        began = read = 0.0
        while began < until_ms:
            first, last = int(read // _DELTA_MS), int(began // _DELTA_MS)
            read = began
            if last == first:
                began += _DELTA_MS
                continue
            arrived = np.array(
                [
                    random.poisson(rate(m * _DELTA_MS) / 10 / _SLOTS, _SLOTS)
                    for m in range(first, last)
                ]
            ).astype(float)
            rows = arrived.sum(axis=0)
            kept = np.bincount(owner, rows * (1 - shares * (1 - self.merge)), len(self.hosts))
            away = float((rows * shares).sum())
            working = away / (functions * _CAPACITY) if functions else 0.0
            done = began + _COST_MS + 1000 * max(float(kept.max()) / _CAPACITY, working)
            work = {
                host: Work(round(n), 1000 * n / _CAPACITY)
                for host, n in zip(self.hosts, kept.tolist(), strict=True)
            }
            # An epoch is looked at when it is known what it brings, and when it is done.
            examiner.arriving(began, arrived, first + 1)
            if self.offloader is not None and examiner.vitals(began, self.hosts, owner).valid:
                at = began + _COST_MS / 4
                early = examiner.vitals(at, self.hosts, owner, _COST_MS)
                self.offloader.decide(early, _BOUNDS, at)
            examiner.epoch(done, began, None, first + 1, rows, owner, self.hosts, work)
            vitals = examiner.vitals(done, self.hosts, owner, _COST_MS)
            middle = (first + np.arange(len(arrived)) + 0.5) * _DELTA_MS
            ages = done - middle
            self.latency_ms.append((done, float(ages @ arrived.sum(axis=1) / max(rows.sum(), 1))))
            found = None
            if self.offloader is not None:
                found = self.offloader.decide(vitals, _BOUNDS, done)
                shares, functions = found.shares, found.functions
            if pending is not None and pending[0] <= done:
                self.hosts, owner = _apply(self.hosts, owner, pending[1])
                pending = None
            elif pending is None:
                seen = vitals if found is None else for_switch(vitals, _BOUNDS, found)
                decision = switch.decide(seen, _BOUNDS)
                if found is not None:
                    decision = held(decision, found)
                if decision.treatments:
                    grows = any(t.kind == "scale_out" for t in decision.treatments)
                    pending = (done + (self.start_ms if grows else 0.0), decision.treatments)
                    self.asked_ms.append(done)
            self.host_count.append((done, len(self.hosts)))
            self.carried.append((done, bool(shares.any())))
            began = done
        return self

    def worst(self, from_ms: float, to_ms: float) -> float:
        return max(latency for at, latency in self.latency_ms if from_ms <= at < to_ms)

    def carries(self, at_ms: float) -> bool:
        return next(so for at, so in self.carried if at >= at_ms)

    def hosts_at(self, at_ms: float) -> int:
        return next(n for at, n in self.host_count if at >= at_ms)


def _apply(
    hosts: tuple[HostId, ...], owner: np.ndarray, treatments: Sequence[Treatment]
) -> tuple[tuple[HostId, ...], np.ndarray]:
    names = list(hosts)
    held_by = [hosts[n] for n in owner.tolist()]
    for treatment in treatments:
        for slot in treatment.slots:
            held_by[slot] = treatment.target
        if treatment.kind == "scale_in":
            names.remove(treatment.source)
    free = (HostId(f"sum/{n}") for n in range(100) if HostId(f"sum/{n}") not in names)
    new = {h: next(free) for h in dict.fromkeys(held_by) if is_new(h)}
    names += new.values()
    return tuple(names), np.array([names.index(new.get(h, h)) for h in held_by])


def _burst(times: float, from_s: float, to_s: float) -> Callable[[float], float]:
    """Of 6,000 records a second: 60 % of two hosts."""
    return lambda ms: 6_000.0 * (times if from_s <= ms / 1000 < to_s else 1.0)


@pytest.mark.parametrize("times", [3.0, 5.0, 10.0])
def test_a_short_burst_is_carried_by_functions_alone(times: float) -> None:
    run = _Run(Offloader()).run(_burst(times, 40, 70), 100_000.0)
    assert run.hosts_at(99_000.0) == 2
    assert not [at for at in run.asked_ms if at >= 40_000]
    assert run.carries(45_000.0)
    assert not run.carries(80_000.0)
    assert run.worst(55_000.0, 70_000.0) < 1_000.0
    without = _Run(None).run(_burst(times, 40, 70), 100_000.0)
    assert run.worst(40_000.0, 70_000.0) < 0.5 * without.worst(40_000.0, 70_000.0)


def test_a_burst_that_lasts_is_handed_to_hosts() -> None:
    made = OffloadSettings(patience_ms=20_000.0)
    run = _Run(Offloader(made), start_ms=10_000.0).run(_burst(3.0, 40, 900), 160_000.0)
    assert min(at for at in run.asked_ms if at >= 40_000) > 60_000.0
    assert run.carries(65_000.0)
    assert run.hosts_at(159_000.0) >= 5
    assert not run.carries(159_000.0)
    assert run.worst(50_000.0, 160_000.0) < 1_000.0


def test_hosts_leave_after_a_burst_that_lasted() -> None:
    made = OffloadSettings(patience_ms=10_000.0)
    run = _Run(Offloader(made), start_ms=5_000.0).run(_burst(3.0, 40, 90), 300_000.0)
    assert run.hosts_at(89_000.0) >= 5
    assert run.hosts_at(299_000.0) <= 3
    assert not run.carries(299_000.0)


@pytest.mark.parametrize("shape", ["sine", "gradual", "saw"])
def test_other_shapes_are_carried_too(shape: str) -> None:
    def rate(ms: float) -> float:
        second = ms / 1000 - 40
        if not 0 <= second < 60:
            return 6_000.0
        rises = {
            "sine": 4 * np.sin(np.pi * second / 60),
            "gradual": 4 * second / 60,
            "saw": 4 * (second % 6) / 6,
        }
        return float(6_000.0 * (1 + rises[shape]))

    run = _Run(Offloader()).run(rate, 120_000.0)
    assert run.hosts_at(119_000.0) == 2
    assert not run.carries(119_000.0)
    assert run.worst(40_000.0, 120_000.0) < 2_000.0


def test_without_a_burst_functions_are_never_called() -> None:
    run = _Run(Offloader()).run(lambda ms: 6_500.0, 60_000.0)
    assert not any(so for _, so in run.carried)
