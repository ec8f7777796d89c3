"""The switch: scale-out, scale-in and load balance as one decision (StreamSwitch's Diagnose)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.control.diagnose.diagnosis import Diagnosis, diagnose, nothing_known
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.peaks import Lessons, Peaks
from penstock.control.diagnose.project import Mm1, Projection, fitting
from penstock.control.diagnose.strategies import (
    Move,
    best_balance,
    best_scale_in,
    best_scale_out,
    best_spread,
)
from penstock.control.examine.calm import Calm
from penstock.control.examine.vitals import Vitals
from penstock.control.policies import reasons as words
from penstock.control.policies.draft import Draft, Proposal, without_one
from penstock.control.treat.decision import Bounds, Decision, Treatment

_MOST, _WORK = 64, 16_384
"""Maximum number of severe hosts that one decision treats, and maximum of that times the step's hosts. The
worst hosts come first; the others are treated by later decisions."""
_WORTHWHILE = 0.1
"""Minimum relative improvement of the worst host for a balance that leaves it severe to be worthwhile."""
_LOOKS = 32
"""Maximum number of searches for a scale-in within the time that peaks are remembered."""


class Switch:
    """Keeps the SLA with as few hosts as possible.

    Severe hosts are relieved, by a balance if that makes them healthy, otherwise by a new host. If all
    hosts are good, one leaves if the others stay good without it. Several changes at one boundary cost
    about as much as one. So a decision adds treatments, always on the vitals expected after the earlier ones,
    until no host is severe.

    projection  the model of latency as a function of load; by default the one that fits the engine
    unit        at most one treatment per decision, and a balance only if it makes the whole step healthy,
                as in the paper
    memory      scale in cautiously. Fewer hosts must be good even with the highest arrivals of the last
                `memory_ms` and a reserve on top. The reserve is `hysteresis` (a share of them) or `noise`
                standard deviations of Poisson arrivals in a window, whichever is more. A number of hosts
                that was too few for the same load in the last `lesson_ms` is not tried again. Noise alone
                causes no balance
    drain       the time in which a backlog should be gone, in multiples of the bound (see `diagnose`)

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [450.0, 450.0], 1, service_rate=1000.0, latency_ms=640.0)
    >>> decision = Switch().decide(vitals, Bounds(SLA(1000, 1000)))
    >>> decision.health, str(decision.treatments[0])
    ('severe', 'scale out: slots 0 from sum/0 to new/1')
    >>> print(decision.reasons[0])
    sum/0 is severe: latency 640 ms is above the alert of 500 ms and would grow without limit \
(arrivals 900/s, service 1,000/s less a margin of 20 %)
    """

    def __init__(
        self,
        projection: Projection | None = None,
        unit: bool = False,
        memory: bool = True,
        *,
        memory_ms: float = 30_000.0,
        lesson_ms: float = 300_000.0,
        hysteresis: float = 0.1,
        noise: float = 2.0,
        drain: float = 2.0,
    ) -> None:
        self.projection, self.unit, self.memory = projection, unit, memory
        self.hysteresis, self.noise, self.drain = hysteresis, noise if memory else 0.0, drain
        self._name = "switch(unit)" if unit else "switch"
        self._peaks = Peaks(memory_ms)
        self._calm = Calm()
        self._looked_ms = -np.inf
        self._lessons = Lessons(lesson_ms)

    @staticmethod
    def published() -> Switch:
        """StreamSwitch as published: the M/M/1 projection, one treatment per decision, no memory of peaks, no
        allowance for noise, and no account of backlogs."""
        switch = Switch(Mm1(), unit=True, memory=False, drain=math.inf)
        switch._name = "streamswitch"
        return switch

    def __str__(self) -> str:
        return self._name

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        """Decide what should change, by the step's health."""
        if self.memory:
            vitals = self._calm.of(vitals, _window_s(bounds))
        diagnosis = diagnose(vitals, bounds, self.projection or fitting(vitals), self.drain)
        if diagnosis is None:
            return nothing_known(vitals)
        if self.memory:
            self._peaks.note(vitals.now_ms, vitals.rate)
        hosts = len(vitals.hosts)
        treatments: tuple[Treatment, ...] = ()
        reasons: list[str] = []
        if hosts > bounds.at_most:
            treatments, reasons = self._shrink(vitals, bounds, diagnosis)
        elif diagnosis.health == "severe" or hosts < bounds.at_least:
            treatments, reasons = self._relieve(vitals, bounds, diagnosis)
        elif diagnosis.health == "good" and hosts > bounds.at_least:
            treatments, reasons = self._scale_in(vitals, bounds, diagnosis)
        return Decision(
            diagnosis.health,
            diagnosis.host_health(),
            treatments,
            tuple(reasons),
            diagnosis.hot_slots,
        )

    def _relieve(self, vitals: Vitals, bounds: Bounds, diagnosis: Diagnosis) -> Proposal:
        """Relieve severe hosts, the worst first, then add hosts up to the minimum number."""
        # If arrivals exceed the capacity of all hosts, backlogs only grow: they are not worth a move.
        hopeless = (
            diagnosis.rate.sum() >= diagnosis.capacity.sum() and len(vitals.hosts) >= bounds.at_most
        )
        draft, reasons = Draft(diagnosis, diagnosis.arrivals if hopeless else diagnosis.load), []
        most = min(_MOST, max(1, _WORK // len(vitals.hosts)))
        for _ in range(1 if self.unit else most):
            source = draft.worst()
            if source is not None:
                if source < len(vitals.hosts) and source not in draft.sources:
                    reasons.append(words.severe(vitals, bounds, diagnosis, source))
                if not self._cure(draft, source, bounds, diagnosis.floor):
                    draft.give_up(source)
                    reasons.append(words.helpless(vitals, bounds, draft.load, source))
            elif draft.load.hosts >= bounds.at_least or not _grow(draft):
                break
        if len(vitals.hosts) < bounds.at_least:
            reasons.append(words.too_few(vitals, bounds, draft.load.hosts))
        if not self.unit and draft.severe:
            reasons.append(words.others_wait(draft.severe))
        # Measurements of a query that still warms up would be misleading later.
        grew = diagnosis.health == "severe" and draft.load.hosts > len(vitals.hosts)
        if grew and self._peaks.ready:
            self._lessons.note(vitals.now_ms, len(vitals.hosts), diagnosis.load.rate.sum())
        expected = partial(words.relieved, vitals, diagnosis, draft.load.latency_ms)
        return draft.treatments(vitals, expected), reasons

    def _cure(self, draft: Draft, source: int, bounds: Bounds, floor: float) -> bool:
        """Add the best move for a severe host to the draft; False if no move is worth it."""
        load = draft.load
        may_grow = load.hosts < bounds.at_most
        # If no host has room left, no balance is enough. This saves the search when all are severe.
        move = None if may_grow and load.slack.max() < floor else best_balance(load, source)
        if move is not None and self._cures(draft, move, bounds, floor):
            draft.move(move)
            return True
        # If even an idle host is too slow, another one of the same kind would not help.
        if may_grow and load.capacity[source] / load.gain[source] > floor:
            out = best_scale_out(load, source)
            if out is not None:
                draft.move(out[1], out[0])
                return True
        if move is not None and self._is_worthwhile(load, move, bounds):
            draft.move(move)
            return True
        return False

    def _cures(self, draft: Draft, move: Move, bounds: Bounds, floor: float) -> bool:
        """Whether source and target keep the bound after this balance, with some noise.

        A source with a slot that overloads any host need not keep it.
        """
        if self.unit and draft.severe > 1:
            return False
        load, source = draft.load, move.source
        left, taken = _rates(load, move)
        if self._slack(load, move.target, taken, bounds) < floor:
            return False
        if self._slack(load, source, left, bounds) >= floor:
            return True
        return bool(load.hottest(source) >= load.capacity.max())

    def _slack(self, load: Load, host: int, rate: float, bounds: Bounds) -> float:
        """Slack of a host with this rate and some noise."""
        noisy = rate + self.noise * _deviation(rate, bounds)
        return float((load.capacity[host] - noisy) / load.gain[host])

    def _is_worthwhile(self, load: Load, move: Move, bounds: Bounds) -> bool:
        """Whether a balance that leaves the source severe clearly improves the worse of the two hosts."""
        source, target = move.source, move.target
        before, (left, taken) = float(load.rate[source]), _rates(load, move)
        if before - left < 2 * self.noise * _deviation(before, bounds):
            return False
        if load.slack[source] > 0:
            return bool(move.slack * (1 - _WORTHWHILE) >= load.slack[source])
        capacity = load.capacity
        busiest = max(left / capacity[source], taken / capacity[target])
        return bool(busiest <= (1 - _WORTHWHILE) * before / capacity[source])

    def _scale_in(self, vitals: Vitals, bounds: Bounds, diagnosis: Diagnosis) -> Proposal:
        """Remove one host, if the others keep the bound without it."""
        if self.memory and not self._peaks.ready:
            return (), []
        if self.memory and 0 < vitals.now_ms - self._looked_ms < self._peaks.memory_ms / _LOOKS:
            return (), []
        self._looked_ms = vitals.now_ms
        load = self._prudent(vitals, bounds, diagnosis)
        if self.memory and self._lessons.forbid(vitals.now_ms, load.hosts - 1, load.rate.sum()):
            return (), []
        move = best_scale_in(load, diagnosis.floor)
        if move is not None:
            return without_one(vitals, diagnosis, load, [move])
        several = [] if self.unit else best_spread(load, diagnosis.floor)
        return without_one(vitals, diagnosis, load, several)

    def _shrink(self, vitals: Vitals, bounds: Bounds, diagnosis: Diagnosis) -> Proposal:
        """Remove one host because there are more than allowed, even if the others become severe."""
        load = self._prudent(vitals, bounds, diagnosis)
        move = best_scale_in(load)
        treatments, reasons = without_one(vitals, diagnosis, load, [] if move is None else [move])
        return treatments, [words.too_many(vitals, bounds), *reasons]

    def _prudent(self, vitals: Vitals, bounds: Bounds, diagnosis: Diagnosis) -> Load:
        """The load to decide on scale-in with: recent peaks and a reserve."""
        if not self.memory:
            return diagnosis.load
        peak = self._peaks.per_host(vitals.owner, len(vitals.hosts))
        peak = np.maximum(peak, diagnosis.load.rate)
        deviation = np.sqrt(peak / _window_s(bounds))
        reserve = np.maximum(self.hysteresis * peak, self.noise * deviation)
        return replace(diagnosis.load, rate=peak + reserve)


def _grow(draft: Draft) -> bool:
    """Add a new host that takes slots of the worst host whose slots can be divided."""
    for source in np.argsort(draft.load.slack)[:_MOST].tolist():
        out = best_scale_out(draft.load, source)
        if out is not None:
            draft.move(out[1], out[0])
            return True
    return False


def _rates(load: Load, move: Move) -> tuple[float, float]:
    """Arrivals of source and target after a move, in records per second."""
    amount = load.slot_rate[move.slots].sum()
    return float(load.rate[move.source] - amount), float(load.rate[move.target] + amount)


def _window_s(bounds: Bounds) -> float:
    return bounds.window_ms / 1000.0


def _deviation(rate: float, bounds: Bounds) -> float:
    """Standard deviation of the rate of Poisson arrivals, counted over the SLA's window."""
    return math.sqrt(max(rate, 0.0) / _window_s(bounds))
