"""Decides when burst workers help the hosts of a step, and how much: Sponge's dynamic offloading policy.

    a host is above its stable load, twice in a row ──► burst workers take the load beyond the target
    with their help it is above or below, twice     ──► the shares are computed again
    it would be stable without them, twice          ──► the host takes all its rows again

Hosts come second: they are requested when a burst has lasted (see `for_switch`).
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
    load_of,
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
"""Milliseconds between two observations above which the backlog is not integrated over the gap."""
_MOMENT_MS = 1.0
_PARTIALS_DECAY = 1 / 8
"""Weight of the newest measurement of partial states per row."""
_PROFILE_DECAY = 1 / 2
"""Weight of the newest profile of burst workers' speed."""
_SLOWEST, _FASTEST = 0.05, 20.0
"""Limits of the measured speed of a burst worker, relative to a host."""
_SAME = 0.02
"""Smallest change of a share that is applied."""
_MOST_NAMED = 3
"""Most hosts that a reason names, busiest first."""
_ROUNDING = 0.005
_UNABLE = "merging the results of functions costs hosts as much as it saves them"
_UNWANTED = "functions were turned off"


class Offloader:
    """Decides which rows of one step go to burst workers. Pure; used by one thread at a time.

    Rates in its vitals must include the rows that burst workers take. It assumes that the shares it returns
    are in force until the next call.

    >>> from penstock.model import SLA, StepId
    >>> offloader, bounds = Offloader(OffloadSettings(partials_per_row=0.0)), Bounds(SLA(1000, 1000))
    >>> for second, rate in enumerate([300.0, 300.0, 1400.0, 1400.0]):
    ...     vitals = Vitals.even(StepId("sum"), [rate, rate], hosts=2, service_rate=1000.0)
    ...     now = offloader.decide(vitals, bounds, 1000.0 * second)
    ...     print(now.shares.round(2).tolist(), now.workers, now.warm, now.holds)
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
        """Burst workers that were requested, and the number that could be used now."""
        self._relieved: frozenset[HostId] = frozenset()
        self._slots: tuple[tuple[HostId, ...], bytes] | None = None
        """Hosts and owners of slots at the last observation."""
        self._time_ms = -np.inf
        self._gaps_ms = (0.0, 0.0)
        """Milliseconds between the last observations, newest last."""
        self._rate: Floats = np.zeros(0)
        """Records per second of each slot, in the last vitals."""
        self._tense_ms = np.inf
        """Time since which a host has been above the target, in milliseconds."""
        self._limits = self.settings
        """Settings with load limits that fit the current latency bound."""
        self._speed: float | None = None
        """Measured speed of burst workers relative to hosts; None before the first profile."""
        self._level = 0.0
        """Load that the last shares leave hosts and burst workers with."""
        self._now = Offloading(np.zeros(0), 0, 0)

    @property
    def limits(self) -> OffloadSettings:
        """The settings, with load limits that fit the current latency bound, and with no more burst workers
        than are ready. If none is ready, those that could be started count."""
        ready = self._ready.at(self._time_ms, self._limits)
        return replace(self._limits, at_most=ready or self._limits.at_most)

    @property
    def speed(self) -> float:
        """Speed of a burst worker relative to a host: measured, or assumed before that."""
        return self.settings.speed if self._speed is None else self._speed

    def profiled(self, here_ms: float, workers_ms: float) -> None:
        """Add CPU milliseconds of the same requests on a host's machine and on burst workers.

        >>> offloader = Offloader(OffloadSettings(speed=1.0))
        >>> offloader.profiled(3.0, 6.0)
        >>> offloader.speed
        0.5
        """
        if here_ms <= 0 or workers_ms <= 0:
            return
        speed, old = min(max(here_ms / workers_ms, _SLOWEST), _FASTEST), self._speed
        self._speed = speed if old is None else old + _PROFILE_DECAY * (speed - old)

    @property
    def merge(self) -> float:
        """Cost in records that an offloaded row still has for its host."""
        return self.settings.merge_cost * self._partials

    @property
    def able(self) -> bool:
        """Whether burst workers can help at all."""
        return self.settings.at_most > 0 and self.merge < 1

    def merged(self, rows: int, partials: int) -> None:
        """Add a finished epoch, in which burst workers made `partials` partial states of `rows` rows. If
        couriers combine rows, `rows` are the records that hosts would have got."""
        if rows > 0:
            self._partials += _PARTIALS_DECAY * (partials / rows - self._partials)

    def steer(self, settings: OffloadSettings) -> None:
        """Use other settings from the next decision on."""
        self.settings = self._burst.settings = settings
        self._limits = replace(settings, speed=self.speed)

    def let_go(self, now_ms: float) -> None:
        """Stop using burst workers now, whatever was decided."""
        self._relieved, self._wanted = frozenset(), 0
        self._burst.note(now_ms, helped=False, busy=0.0, hosts=0)
        self._now = replace(
            self._now, shares=np.zeros(len(self._now.shares)), workers=0, lasts=False, holds=False
        )

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None = None
    ) -> Offloading:
        """Decide the shares of burst workers. `spent` is their cost so far in dollars, if known."""
        if len(self._now.shares) != len(vitals.rate):
            self._now = replace(self._now, shares=np.zeros(len(vitals.rate)), workers=0)
        served, same = service_rates(vitals), np.array_equal(vitals.rate, self._rate)
        if now_ms == self._time_ms and not same:
            # An epoch may end at the moment when the next is read; two observations must not share a time.
            now_ms += _MOMENT_MS
        gap_ms = now_ms - self._time_ms
        soon = same and 0 <= gap_ms < self.settings.apart_ms
        if served is None or not vitals.valid or soon:
            return replace(self._now, reasons=())
        self._rate, window_ms = vitals.rate, float(bounds.window_ms)
        within = self.settings.within(bound_part(vitals, bounds))
        self._time_ms, self._limits = now_ms, replace(within, speed=self.speed)
        self._gaps_ms = (self._gaps_ms[1], gap_ms)
        self._notice_moves(vitals, gap_ms)
        vitals = self._calm.of(replace(vitals, now_ms=now_ms), window_ms, bool(self._relieved))
        # Steps that share epochs run one after the other: a host has only its step's fraction of time.
        part = bounds.time if vitals.epoch_cost_ms > 0 else 1.0
        seen = self._observe(vitals, served, part)
        if self.merge >= 1 and not (seen.rate > self._limits.high * seen.capacity).any():
            # Hosts can do all the work: in the next burst, burst workers may help more.
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
            by_cpu=bool(seen.by_cpu.any()),
            cpu=_highest(vitals.cpu),
            speed=self.speed,
            speed_measured=self._speed is not None,
        )
        self._ready.keep(now_ms, self._now.warm)
        self._follow_burst(seen, spent, window_ms)
        return self._now

    def _notice_moves(self, vitals: Vitals, gap_ms: float) -> None:
        """Handle moved slots and long gaps. A host that gets an offloaded slot counts as relieved."""
        slots = (vitals.hosts, vitals.owner.tobytes())
        if slots != self._slots:
            self._slots = slots
            owners = np.unique(vitals.owner[self._now.shares > 0])
            self._relieved = frozenset(vitals.hosts[n] for n in owners.tolist())
            self._backlog.forget()
        elif not 0 <= gap_ms <= _LONGEST_GAP_MS:
            self._backlog.forget()

    def _observe(self, vitals: Vitals, served: Floats, part: float) -> Observation:
        """Observe the hosts under the shares in force, and remember the rates of stable ones."""
        settings, now, hosts, rate = self._limits, self._now, vitals.hosts, vitals.host_rate
        alone = ~_flags(hosts, self._relieved)
        load, by_cpu = load_of(vitals, rate / served)
        stable = alone & (load <= settings.high * part)
        self._stable.note(vitals.now_ms, hosts, rate, load, stable)
        # Once hosts are being added, this policy and the switch must use the same capacity.
        capacity = part * (served if now.lasts else self._stable.per_core(hosts, served))
        kept = _kept(vitals, now)
        throughput = capacity * np.divide(rate, kept, out=np.ones(len(rate)), where=kept > 0)
        redirected = float((vitals.rate * now.shares).sum())
        if redirected > 0:
            by_workers = now.workers * settings.speed * float(capacity.mean()) / redirected
            throughput = np.where(alone, throughput, np.minimum(throughput, rate * by_workers))
        return Observation(
            vitals.now_ms, hosts, rate, throughput, capacity, kept / capacity, by_cpu & alone
        )

    def _judge(self, seen: Observation, flow: Floats) -> tuple[Flags, list[str]]:
        """The hosts that burst workers should relieve from now on, and the reasons for a change.

        `flow` holds the records per second that each host would have to process without burst workers.
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
            *_explained(seen, burst, "has been above", settings.high, settings.in_a_row),
            *_explained(seen, idle, "has been below", settings.low, settings.in_a_row),
            *_explained(
                seen, done, "would have been below", settings.high, row, " without functions"
            ),
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
        """Compute the shares again. Returns the reasons; none if nothing changes."""
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
            # An epoch brings the rows that arrived during the one before it, between two observations.
            part = min(max(self._gaps_ms), _LONGEST_GAP_MS) * float(seen.rate.sum() / flow.sum())
            if part * at_once.level <= settings.start_ms + part * relief.level:
                relief = at_once
        self._above.restart()
        self._below.restart()
        # The backlog will be cleared: hosts may be needed for the rows that keep arriving.
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
        """Burst workers to keep warm: for a multiple of the stable load, or more while a burst needs more."""
        settings, before = self._limits, self._now.warm
        wanted = kept_warm(self._stable.rate, seen.capacity, self.merge, settings)
        if settings.start_ms > 0:
            wanted = max(wanted, self._wanted)
        # Rates fluctuate: a difference of one burst worker starts or ends nothing.
        return before if before and abs(wanted - before) <= max(1, before // 10) else wanted

    def _follow_burst(self, seen: Observation, spent: float | None, window_ms: float) -> None:
        """Track whether a burst begins, lasts or is over, and whether the switch should wait."""
        settings, now, burst = self._limits, self._now, self._burst
        per_core = float(seen.capacity.mean())
        beyond = float(np.maximum(seen.rate - settings.target * seen.capacity, 0.0).sum())
        hosts = workers_needed(beyond, per_core, 1.0, settings.target)
        busy, lasted = now.redirected / (settings.speed * per_core), burst.lasts
        burst.note(seen.time_ms, bool(self._relieved), busy, hosts, spent)
        reasons = now.reasons
        if burst.lasts and not lasted and burst.since_ms is not None:
            reasons = (*reasons, _lasts(seen.time_ms - burst.since_ms, burst.dearer))
        # A load between target and high may be the start of a burst, for as long as patience lasts.
        tense = bool((seen.load > settings.target).any())
        self._tense_ms = min(self._tense_ms, seen.time_ms) if tense else np.inf
        begins = tense and seen.time_ms - self._tense_ms <= settings.patience_ms
        # For a while after a burst, the window still contains it.
        just_over = seen.time_ms - burst.ended_ms <= 2 * window_ms
        enough = not self._relieved or self._level <= settings.high
        needed = now.carries or begins or just_over
        holds = self.able and enough and not burst.lasts and needed
        self._now = replace(now, lasts=burst.lasts, holds=holds, reasons=reasons)


def _kept(vitals: Vitals, now: Offloading) -> Floats:
    """Records per second that each host gets while burst workers take the rest."""
    kept = np.bincount(vitals.owner, vitals.rate * now.kept, len(vitals.hosts))
    return kept.astype(np.float64)


def _highest(loads: Floats | None) -> float | None:
    known = np.zeros(0) if loads is None else loads[~np.isnan(loads)]
    return float(known.max()) if len(known) else None


def _flags(hosts: tuple[HostId, ...], some: frozenset[HostId]) -> Flags:
    return np.array([host in some for host in hosts], dtype=np.bool_)


# -- explanations for the journal


def _explained(
    seen: Observation, which: Flags, what: str, load: float, row: int, how: str = ""
) -> list[str]:
    """One sentence for each host whose load was above or below a limit for `row` observations in a row."""
    some = np.flatnonzero(which)
    some = some[np.argsort(-seen.load[some], kind="stable")]
    reasons = [
        f"{seen.hosts[n]} {what} {_percent(load)} for {row} observations{how} (arrivals "
        f"{seen.rate[n]:,.0f}/s, capacity {seen.capacity[n]:,.0f}/s, load {_percent(seen.load[n])})"
        for n in some[:_MOST_NAMED].tolist()
    ]
    if len(some) > _MOST_NAMED:
        reasons.append(f"and {len(some) - _MOST_NAMED:,} more hosts likewise")
    return reasons


def _given(relief: Relief, settings: OffloadSettings) -> str:
    """A sentence about the shares of burst workers."""
    if relief.workers == 0:
        return "functions get no rows"
    some = relief.shares[relief.shares > 0]
    least, most = _percent(some.min()), _percent(some.max())
    part = most if least == most else f"{least} to {most}"
    slots = "1 slot" if len(some) == 1 else f"{len(some):,} slots"
    text = f"{part} of the rows of {slots} go to functions, {relief.workers:,} at a time"
    if relief.level > settings.target + _ROUNDING:
        text += f"; there are no more functions, so a host stays at {_percent(relief.level)} load"
    return text


def _lasts(waited_ms: float, dearer: bool) -> str:
    """A sentence about why hosts are added."""
    why = "functions have cost more than hosts would have" if dearer else "that is long enough"
    return f"the burst has lasted for {waited_ms / 1000:,.0f} s and {why}: time for hosts"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
