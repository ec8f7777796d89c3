"""The switch: scale-out, scale-in and load balance as one decision (StreamSwitch's Diagnose)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.control.diagnose.diagnosis import Diagnosis, diagnose, nothing_known
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.peaks import Lessons, Peaks
from penstock.control.diagnose.project import Projection, fitting
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
from penstock.control.policies.draft import Draft, Found, without_one
from penstock.control.treat.decision import Bounds, Decision, Treatment

_MOST, _WORK = 64, 16_384
"""Hosts that one decision deals with, those that are worst off first: the others come next. Each takes
as long as the step has hosts, so that there are fewer of them where there are very many hosts."""
_WORTHWHILE = 0.1
"""Share by which a balance that cures nobody must lower the worst, so as to be worth the pause."""
_LOOKS = 32
"""Looks for a host that could go, in the time that is remembered."""


class Switch:
    """Keeps the SLA with as few hosts as it can.

    Severe hosts are relieved: by a balance if it cures, by a new host otherwise. Where all are good,
    one host goes if the others stay good without it. All changes at one boundary cost about as much
    as one of them, so a decision goes on, on the vitals as they would be, until no host is severe.

    projection  how latency follows from load; by default the one that fits the engine
    unit        at most one treatment per decision, and a balance only if it cures the whole step:
                as in the paper
    memory      scale in prudently: only what would have been good also with the highest arrivals of
                the last `memory_ms`, and with a reserve on top of them: `hysteresis` (a share of
                them) or `noise` standard deviations of what Poisson arrivals in a window vary
                by, whichever is more; and not to a number of hosts that was too few for as much
                in the last `lesson_ms`. Nor does a balance happen because of noise alone
    drain       in so many bounds a backlog should be worked off (see `diagnose`)

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [450.0, 450.0], 1, service_rate=1000.0, latency_ms=640.0)
    >>> decision = Switch().decide(vitals, Bounds(SLA(1000, 1000)))
    >>> decision.health, str(decision.treatments[0])
    ('severe', 'scale out: slots 0 from sum/0 to new/1')
    >>> print(decision.reasons[0])
    sum/0 is severe: latency 640 ms is above the alert of 500 ms and would grow without end \
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
        self._peaks = Peaks(memory_ms)
        self._calm = Calm()
        self._looked_ms = -np.inf
        self._lessons = Lessons(lesson_ms)

    def __str__(self) -> str:
        return "switch(unit)" if self.unit else "switch"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        """What the step's health is, and what should change."""
        if self.memory:
            vitals = self._calm.of(vitals, _window_s(bounds))
        found = diagnose(vitals, bounds, self.projection or fitting(vitals), self.drain)
        if found is None:
            return nothing_known(vitals)
        if self.memory:
            self._peaks.note(vitals.now_ms, vitals.rate)
        hosts = len(vitals.hosts)
        treatments: tuple[Treatment, ...] = ()
        reasons: list[str] = []
        if hosts > bounds.at_most:
            treatments, reasons = self._shrink(vitals, bounds, found)
        elif found.health == "severe" or hosts < bounds.at_least:
            treatments, reasons = self._relieve(vitals, bounds, found)
        elif found.health == "good" and hosts > bounds.at_least:
            treatments, reasons = self._scale_in(vitals, bounds, found)
        return Decision(found.health, found.told(), treatments, tuple(reasons), found.hot_slots)

    def _relieve(self, vitals: Vitals, bounds: Bounds, found: Diagnosis) -> Found:
        """Cure severe hosts, those that are worst off first; then see to the least number of hosts."""
        # What all hosts together cannot take will not be worked off: then no backlog is worth a move.
        hopeless = found.rate.sum() >= found.capacity.sum() and len(vitals.hosts) >= bounds.at_most
        draft, reasons = Draft(found, found.arrivals if hopeless else found.load), []
        most = min(_MOST, max(1, _WORK // len(vitals.hosts)))
        for _ in range(1 if self.unit else most):
            source = draft.worst()
            if source is not None:
                if source < len(vitals.hosts) and source not in draft.sources:
                    reasons.append(words.severe(vitals, bounds, found, source))
                if not self._cure(draft, source, bounds, found.floor):
                    draft.give_up(source)
                    reasons.append(words.helpless(vitals, bounds, draft.load, source))
            elif draft.load.hosts >= bounds.at_least or not _grow(draft):
                break
        if len(vitals.hosts) < bounds.at_least:
            reasons.append(words.too_few(vitals, bounds, draft.load.hosts))
        if not self.unit and draft.severe:
            reasons.append(words.others_wait(draft.severe))
        # What is learnt while a query warms up, slowly, would not hold.
        grew = found.health == "severe" and draft.load.hosts > len(vitals.hosts)
        if grew and self._peaks.ready:
            self._lessons.note(vitals.now_ms, len(vitals.hosts), found.load.rate.sum())
        expected = partial(words.relieved, vitals, found, draft.load.latency_ms)
        return draft.treatments(vitals, expected), reasons

    def _cure(self, draft: Draft, source: int, bounds: Bounds, floor: float) -> bool:
        """Do what is best for a severe host; False if nothing is worth it."""
        load = draft.load
        may_grow = load.hosts < bounds.at_most
        # Where nobody has room left, no balance cures: a short cut when all are severe.
        move = None if may_grow and load.slack.max() < floor else best_balance(load, source)
        if move is not None and self._cures(draft, move, bounds, floor):
            draft.move(move)
            return True
        # Where even an idle host would be too slow, one more of its kind would be in vain.
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
        """Whether source and target keep the bound with this balance, and with some noise.

        Of a source with a slot that no host can take, nothing more can be asked.
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
        """What a host would have with this rate and some noise."""
        noisy = rate + self.noise * _deviation(rate, bounds)
        return float((load.capacity[host] - noisy) / load.gain[host])

    def _is_worthwhile(self, load: Load, move: Move, bounds: Bounds) -> bool:
        """Whether a balance that does not cure makes the worse of both clearly better off."""
        source, target = move.source, move.target
        before, (left, taken) = float(load.rate[source]), _rates(load, move)
        if before - left < 2 * self.noise * _deviation(before, bounds):
            return False
        if load.slack[source] > 0:
            return bool(move.slack * (1 - _WORTHWHILE) >= load.slack[source])
        capacity = load.capacity
        busiest = max(left / capacity[source], taken / capacity[target])
        return bool(busiest <= (1 - _WORTHWHILE) * before / capacity[source])

    def _scale_in(self, vitals: Vitals, bounds: Bounds, found: Diagnosis) -> Found:
        """Do without one host, if the others keep the bound all the same."""
        if self.memory and not self._peaks.ready:
            return (), []
        if 0 < vitals.now_ms - self._looked_ms < self._peaks.memory_ms / _LOOKS:
            return (), []
        self._looked_ms = vitals.now_ms
        load = self._prudent(vitals, bounds, found)
        if self.memory and self._lessons.forbid(vitals.now_ms, load.hosts - 1, load.rate.sum()):
            return (), []
        move = best_scale_in(load, found.floor)
        if move is not None:
            return without_one(vitals, found, load, [move])
        several = [] if self.unit else best_spread(load, found.floor)
        return without_one(vitals, found, load, several)

    def _shrink(self, vitals: Vitals, bounds: Bounds, found: Diagnosis) -> Found:
        """There are more hosts than there may be: one goes, whatever the others make of it."""
        load = self._prudent(vitals, bounds, found)
        move = best_scale_in(load)
        treatments, reasons = without_one(vitals, found, load, [] if move is None else [move])
        return treatments, [words.too_many(vitals, bounds), *reasons]

    def _prudent(self, vitals: Vitals, bounds: Bounds, found: Diagnosis) -> Load:
        """The load that scale-in goes by."""
        if not self.memory:
            return found.load
        peak = self._peaks.per_host(vitals.owner, len(vitals.hosts))
        peak = np.maximum(peak, found.load.rate)
        deviation = np.sqrt(peak / _window_s(bounds))
        reserve = np.maximum(self.hysteresis * peak, self.noise * deviation)
        return replace(found.load, rate=peak + reserve)


def _grow(draft: Draft) -> bool:
    """Give the host that is worst off, of those whose slots can be divided, a new one beside it."""
    for source in np.argsort(draft.load.slack)[:_MOST].tolist():
        out = best_scale_out(draft.load, source)
        if out is not None:
            draft.move(out[1], out[0])
            return True
    return False


def _rates(load: Load, move: Move) -> tuple[float, float]:
    """What arrives for source and target after a move."""
    amount = load.slot_rate[move.slots].sum()
    return float(load.rate[move.source] - amount), float(load.rate[move.target] + amount)


def _window_s(bounds: Bounds) -> float:
    return bounds.sla.window_ms / 1000.0


def _deviation(rate: float, bounds: Bounds) -> float:
    """The standard deviation of a rate that is counted over the SLA's window, of Poisson arrivals."""
    return math.sqrt(max(rate, 0.0) / _window_s(bounds))
