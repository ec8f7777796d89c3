"""When burst workers help the hosts of a step, and with how much: Sponge's dynamic offloading policy.

    a host is above its stable load, twice in a row ──► burst workers take what is beyond the target
    with their help it is outside of it, twice      ──► the shares are worked out anew
    it would be stable without them, twice          ──► its rows are its own again

Hosts come second: they are asked for when a burst has lasted (see `for_switch`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.control.diagnose.load import Flags, service_rates
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading, OffloadSettings
from penstock.model import HostId
from penstock.offload.policy.burst import Burst, Ready
from penstock.offload.policy.observe import (
    Backlog,
    BurstCalm,
    Observation,
    Runs,
    Stable,
    bound_part,
    plausible,
)
from penstock.offload.policy.shares import (
    Relief,
    kept_warm,
    recovery_rate,
    relieve,
    workers_needed,
)

_LONGEST_GAP_MS = 30_000.0
"""Time between two observations from which on nothing is known of what was between them."""
_MOMENT_MS = 1.0
_PARTIALS_DECAY = 1 / 8
"""The weight of what was measured last."""
_SAME = 0.02
"""Shares that would change by less are left as they are."""
_MOST_TOLD = 3
"""Hosts that reasons name one by one, the busiest first."""
_ROUNDING = 0.005
_UNABLE = "merging what functions give costs hosts as much as it saves them"
_UNWANTED = "no functions are wanted any more"


class Offloader:
    """Decides what burst workers carry for one step. Pure; used by one thread at a time.

    It must be given vitals whose rates tell all that arrives for hosts, what burst workers carry too,
    and is taken to have its shares in force from one call to the next.

    >>> from penstock.model import SLA, StepId
    >>> offloader, bounds = Offloader(OffloadSettings(partials_per_row=0.0)), Bounds(SLA(1000, 1000))
    >>> for second, rate in enumerate([300.0, 300.0, 1400.0, 1400.0]):
    ...     vitals = Vitals.even(StepId("sum"), [rate, rate], hosts=2, service_rate=1000.0)
    ...     found = offloader.decide(vitals, bounds, 1000.0 * second)
    ...     print(found.shares.round(2).tolist(), found.workers, found.warm, found.holds)
    [0.0, 0.0] 0 3 False
    [0.0, 0.0] 0 3 False
    [0.0, 0.0] 0 3 True
    [0.66, 0.66] 4 3 True
    """

    def __init__(self, settings: OffloadSettings | None = None) -> None:
        self.settings = settings or OffloadSettings()
        self._partials = self.settings.partials_per_row
        self._calm, self._stable, self._backlog = BurstCalm(), Stable(), Backlog()
        self._above, self._below, self._over = Runs(), Runs(), Runs()
        self._burst = Burst(self.settings)
        self._ready, self._wanted = Ready(), 0
        """Burst workers that were asked for, and how many would be of use now."""
        self._relieved: frozenset[HostId] = frozenset()
        self._slots: tuple[tuple[HostId, ...], bytes] | None = None
        """Hosts and the owners of slots at the last observation."""
        self._time_ms = -np.inf
        self._gaps_ms = (0.0, 0.0)
        """Time between the last observations, the newest last."""
        self._rate: Floats = np.zeros(0)
        """Arrivals as they were told last."""
        self._tense_ms = np.inf
        """Since when a host has been above the target."""
        self._limits = self.settings
        """The loads that are as they should be, by the bound that holds now."""
        self._level = 0.0
        """The load that hosts and burst workers were last to be left with."""
        self._now = Offloading(np.zeros(0), 0, 0)

    @property
    def limits(self) -> OffloadSettings:
        """The settings, with the loads that are as they should be by the bound that holds now, and no
        more burst workers than are ready; where none is, those that are started have to do."""
        ready = self._ready.at(self._time_ms, self._limits)
        return replace(self._limits, at_most=ready or self._limits.at_most)

    @property
    def merge(self) -> float:
        """What a row that goes to burst workers costs its host all the same, in records."""
        return self.settings.merge_cost * self._partials

    @property
    def able(self) -> bool:
        """Whether burst workers can be of any help."""
        return self.settings.at_most > 0 and self.merge < 1

    def merged(self, rows: int, partials: int) -> None:
        """An epoch is done in which burst workers made so many partial states of so many rows; or of
        what hosts would have got for them, where couriers combine rows."""
        if rows > 0:
            self._partials += _PARTIALS_DECAY * (partials / rows - self._partials)

    def steer(self, settings: OffloadSettings) -> None:
        """Go by other settings from the next decision on."""
        self.settings = self._limits = settings
        self._burst.settings = settings

    def let_go(self, now_ms: float) -> None:
        """Burst workers carry nothing from now on, whatever was decided."""
        self._relieved, self._wanted = frozenset(), 0
        self._burst.note(now_ms, helped=False, busy=0.0, hosts=0)
        self._now = replace(
            self._now, shares=np.zeros(len(self._now.shares)), workers=0, lasts=False, holds=False
        )

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None = None
    ) -> Offloading:
        """What burst workers shall carry from now on. `spent` is what they have cost so far, if known."""
        if len(self._now.shares) != len(vitals.rate):
            self._now = replace(self._now, shares=np.zeros(len(vitals.rate)), workers=0)
        served, same = service_rates(vitals), np.array_equal(vitals.rate, self._rate)
        if now_ms == self._time_ms and not same:
            # One epoch ends and the next is read at one moment; no two observations are of one.
            now_ms += _MOMENT_MS
        gap_ms = now_ms - self._time_ms
        soon = same and 0 <= gap_ms < self.settings.apart_ms
        if served is None or not vitals.valid or soon:
            return replace(self._now, reasons=())
        self._rate, window_ms = vitals.rate, float(bounds.sla.window_ms)
        self._time_ms, self._limits = now_ms, self.settings.within(bound_part(vitals, bounds))
        self._gaps_ms = (self._gaps_ms[1], gap_ms)
        self._notice_moves(vitals, gap_ms)
        vitals = self._calm.of(replace(vitals, now_ms=now_ms), window_ms, bool(self._relieved))
        # Steps that share epochs work one after the other: a host has only its step's part of time.
        part = bounds.time if vitals.epoch_cost_ms > 0 else 1.0
        seen = self._observe(vitals, served, part)
        if self.merge >= 1 and not (seen.rate > self._limits.high * seen.capacity).any():
            # Hosts can do it all: at the next one burst workers may be of more help.
            self._partials = self.settings.partials_per_row
        deadline_ms = self.settings.deadline_ms or window_ms
        backlog = self._backlog.note(seen, plausible(seen, vitals, deadline_ms))
        flow = recovery_rate(seen.rate, backlog, deadline_ms)
        relieved, reasons = self._judge(seen, flow)
        if reasons:
            reasons = self._relieve(vitals, seen, flow, relieved, reasons)
        self._now = replace(
            self._now,
            reasons=tuple(reasons),
            warm=self._warm(seen),
            merge=self.merge,
            rate=float(seen.rate.sum()),
            redirected=float((vitals.rate * self._now.shares).sum()),
            backlog=float(backlog.sum()),
            load=float((_kept(vitals, self._now) / seen.capacity).max()),
            load_without=float((seen.rate / seen.capacity).max()),
        )
        self._ready.keep(now_ms, self._now.warm)
        self._follow_burst(seen, spent, window_ms)
        return self._now

    def _notice_moves(self, vitals: Vitals, gap_ms: float) -> None:
        """Shares are of slots: who has been given one that burst workers carry is relieved by it."""
        slots = (vitals.hosts, vitals.owner.tobytes())
        if slots != self._slots:
            self._slots = slots
            owners = np.unique(vitals.owner[self._now.shares > 0])
            self._relieved = frozenset(vitals.hosts[n] for n in owners.tolist())
            self._backlog.forget()
        elif not 0 <= gap_ms <= _LONGEST_GAP_MS:
            self._backlog.forget()

    def _observe(self, vitals: Vitals, served: Floats, part: float) -> Observation:
        """The hosts as they are with the shares in force; stable ones are remembered."""
        settings, now, hosts, rate = self._limits, self._now, vitals.hosts, vitals.host_rate
        alone, useful = ~_flags(hosts, self._relieved), rate / served
        stable = alone & (useful <= settings.high * part)
        self._stable.note(vitals.now_ms, hosts, rate, useful, stable)
        # Once it is the hosts' turn, burst workers and switch must mean the same by a capacity.
        capacity = part * (served if now.lasts else self._stable.per_core(hosts, served))
        kept = _kept(vitals, now)
        throughput = capacity * np.divide(rate, kept, out=np.ones(len(rate)), where=kept > 0)
        redirected = float((vitals.rate * now.shares).sum())
        if redirected > 0:
            by_workers = now.workers * settings.speed * float(capacity.mean()) / redirected
            throughput = np.where(alone, throughput, np.minimum(throughput, rate * by_workers))
        return Observation(vitals.now_ms, hosts, rate, throughput, capacity, kept / capacity)

    def _judge(self, seen: Observation, flow: Floats) -> tuple[Flags, list[str]]:
        """Which hosts burst workers should relieve from now on, and why that, or how much, changes.

        `flow` is what they would have to take, were there no burst workers.
        """
        settings, hosts, row = self._limits, seen.hosts, self._burst.row
        helped = _flags(hosts, self._relieved)
        above = self._above.note(hosts, seen.load > settings.high)
        below = self._below.note(hosts, helped & (seen.load < settings.low))
        over = self._over.note(hosts, helped & (flow < settings.high * seen.capacity))
        if not self.able:
            why = _UNABLE if settings.at_most else _UNWANTED
            return np.zeros(len(hosts), np.bool_), [why] if self._relieved else []
        done = over >= row
        burst = (above >= settings.in_a_row) & ~done
        idle = (below >= settings.in_a_row) & ~done
        ready, now = self._ready.at(seen.time_ms, settings), self._now.workers
        come = helped & ~done & (now < min(ready, self._wanted))
        reasons = [
            *([f"{ready:,} functions are ready, {now:,} were in use"] if come.any() else []),
            *_told(seen, burst, "has been above", settings.high, settings.in_a_row),
            *_told(seen, idle, "has been below", settings.low, settings.in_a_row),
            *_told(seen, done, "would have been below", settings.high, row, " without functions"),
        ]
        return (helped | burst) & ~done, reasons

    def _relieve(
        self,
        vitals: Vitals,
        seen: Observation,
        flow: Floats,
        relieved: Flags,
        reasons: list[str],
    ) -> list[str]:
        """Work out shares anew; returns the reasons, none if all stays as it was."""
        settings, hosts = self._limits, seen.hosts
        more = np.divide(flow, seen.rate, out=np.zeros(len(flow)), where=seen.rate > 0)

        def by(at_most: int, slot_rate: Floats) -> Relief:
            limited = replace(settings, at_most=at_most)
            return relieve(slot_rate, vitals.owner, seen.capacity, relieved, self.merge, limited)

        in_all = vitals.rate * more[vitals.owner]
        relief = by(settings.at_most, in_all)
        self._wanted = relief.workers
        ready = self._ready.at(seen.time_ms, settings)
        if ready < relief.workers:
            at_once = by(ready, in_all)
            # An epoch brings what arrived in the one before it, between two of the observations.
            part = min(max(self._gaps_ms), _LONGEST_GAP_MS) * float(seen.rate.sum() / flow.sum())
            if part * at_once.level <= settings.start_ms + part * relief.level:
                relief = at_once
        self._above.restart()
        self._below.restart()
        # What waits will be worked off: it is for what keeps arriving that hosts may be needed.
        self._level = by(settings.at_most, vitals.rate).level
        before, self._relieved = (
            self._relieved,
            frozenset(hosts[n] for n in np.flatnonzero(relieved).tolist()),
        )
        change = float(np.abs(relief.shares - self._now.shares).max())
        if change < _SAME and relief.workers == self._now.workers and self._relieved == before:
            return []
        self._now = replace(self._now, shares=relief.shares, workers=relief.workers)
        return [*reasons, _given(relief, settings)]

    def _warm(self, seen: Observation) -> int:
        """Burst workers for some times the stable load; more of them while a burst has use for more."""
        settings, before = self._limits, self._now.warm
        wanted = kept_warm(self._stable.rate, seen.capacity, self.merge, settings)
        if settings.start_ms > 0:
            wanted = max(wanted, self._wanted)
        # Rates waver: nothing is started or let go of because of one burst worker more or less.
        return before if before and abs(wanted - before) <= max(1, before // 10) else wanted

    def _follow_burst(self, seen: Observation, spent: float | None, window_ms: float) -> None:
        """See whether a burst begins, lasts or is over, and what the switch should make of it."""
        settings, now, burst = self._limits, self._now, self._burst
        per_core = float(seen.capacity.mean())
        beyond = float(np.maximum(seen.rate - settings.target * seen.capacity, 0.0).sum())
        hosts = workers_needed(beyond, per_core, 1.0, settings.target)
        busy, lasted = now.redirected / (settings.speed * per_core), burst.lasts
        burst.note(seen.time_ms, bool(self._relieved), busy, hosts, spent)
        reasons = now.reasons
        if burst.lasts and not lasted and burst.since_ms is not None:
            reasons = (*reasons, _lasts(seen.time_ms - burst.since_ms, burst.dearer))
        # Between target and high a burst may be on its way; for so long as one is waited for.
        tense = bool((seen.load > settings.target).any())
        self._tense_ms = min(self._tense_ms, seen.time_ms) if tense else np.inf
        begins = tense and seen.time_ms - self._tense_ms <= settings.patience_ms
        # What the window remembers is of the burst for a while after it.
        just_over = seen.time_ms - burst.ended_ms <= 2 * window_ms
        enough = not self._relieved or self._level <= settings.high
        needed = now.carries or begins or just_over
        holds = self.able and enough and not burst.lasts and needed
        self._now = replace(now, lasts=burst.lasts, holds=holds, reasons=reasons)


def _kept(vitals: Vitals, now: Offloading) -> Floats:
    """Per host: records a second that it gets while burst workers carry the rest."""
    kept = np.bincount(vitals.owner, vitals.rate * now.kept, len(vitals.hosts))
    return kept.astype(np.float64)


def _flags(hosts: tuple[HostId, ...], some: frozenset[HostId]) -> Flags:
    return np.array([host in some for host in hosts], dtype=np.bool_)


# -- the sentences by which it explains itself


def _told(
    seen: Observation, which: Flags, what: str, load: float, row: int, how: str = ""
) -> list[str]:
    """Hosts whose load was above or below a limit for some observations in a row."""
    some = np.flatnonzero(which)
    some = some[np.argsort(-seen.load[some], kind="stable")]
    told = [
        f"{seen.hosts[n]} {what} {_percent(load)} for {row} observations{how} (arrivals "
        f"{seen.rate[n]:,.0f}/s, capacity {seen.capacity[n]:,.0f}/s, load {_percent(seen.load[n])})"
        for n in some[:_MOST_TOLD].tolist()
    ]
    if len(some) > _MOST_TOLD:
        told.append(f"the same of {len(some) - _MOST_TOLD:,} more")
    return told


def _given(relief: Relief, settings: OffloadSettings) -> str:
    """What burst workers shall take now."""
    if relief.workers == 0:
        return "nothing goes to functions"
    some = relief.shares[relief.shares > 0]
    least, most = _percent(some.min()), _percent(some.max())
    part = most if least == most else f"{least} to {most}"
    slots = "1 slot" if len(some) == 1 else f"{len(some):,} slots"
    told = f"{part} of the rows of {slots} go to functions, {relief.workers:,} at a time"
    if relief.level > settings.target + _ROUNDING:
        told += f": all that can be done, it leaves a host at {_percent(relief.level)}"
    return told


def _lasts(waited_ms: float, dearer: bool) -> str:
    """Why it is time for hosts."""
    why = "functions have cost more than hosts would have" if dearer else "patience is at its end"
    return f"the burst has lasted for {waited_ms / 1000:,.0f} s and {why}: time for hosts"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
