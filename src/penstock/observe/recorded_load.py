"""The load of a recorded run, as the simulator takes it: arrivals by slot, hosts, speeds, engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from penstock.control.policies.parse import parse
from penstock.control.policies.static import Static
from penstock.control.treat.decision import Bounds
from penstock.errors import FlowError, SettingError
from penstock.model import SLA, LatencyBound, StepId, milliseconds
from penstock.observe.moment import Moment, StepMoment
from penstock.observe.recording import Recording
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Following, Plane
from penstock.sim.run import simulate, simulate_flow
from penstock.sim.trace import Trace
from penstock.state.arrays import Array

_MOST_SECONDS = 3_600
_MOST_VALUES = 4_000_000
"""Time slots times slots that are simulated at most. More of them get longer time slots."""
_MOST_SLOTS = 1_024
"""Slots of a step that are simulated one by one. Of more, neighbours are simulated as one."""
_MOST_EPOCHS = 10_000
"""Epochs that are simulated at most. They take some seconds, and cover an hour of epochs of 360 ms."""
_MOST_LOOKS = 7_200
"""Decisions of a simulated live flow at most. A live flow decides every 100 ms, but an hour of that would
take half a minute to simulate."""
_USUAL_TAIL = 2.0
_TIME_SLOTS_MS = (50, 100, 200, 250, 500, 1000)


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A keyed step."""

    name: str
    rates: Array
    """Records per second, by second and slot."""
    hosts: int
    """Hosts at the beginning."""
    service_rate: float
    """Records per second that a host can process."""
    last: StepMoment
    """The step at the end of the recording, with its limits."""

    @staticmethod
    def of(name: str, moments: Sequence[Moment]) -> RecordedStep:
        """The step of this name in the moment of each second."""
        steps = [next((s for s in m.steps if s.step == name), None) for m in moments]
        known = [step for step in steps if step is not None]
        slots = max(len(step.rates) for step in known)  # split slots have more
        rates = np.zeros((len(steps), slots))
        for second, step in enumerate(steps):
            if step is not None:
                rates[second, : len(step.rates)] = step.rates
        if slots > _MOST_SLOTS:
            firsts = np.arange(0, slots, -(-slots // _MOST_SLOTS))
            rates = np.add.reduceat(rates, firsts, axis=1)
        up = sum(host.up for host in known[0].hosts) or len(known[0].hosts)
        return RecordedStep(name, rates, max(1, up), _service_rate(name, known), known[-1])

    def bounds(self, policy: str, sla: SLA, changes: dict[str, Any]) -> Bounds:
        """The recorded limits with the margin that the policy's text names, and with changes."""
        limits = {"margin": parse(policy)[1], "at_most": None} | changes
        for name, value in limits.items():
            limits[name] = getattr(self.last, name) if value is None else value
        wanted = Bounds(
            sla, step=self.name, **{name: v for name, v in limits.items() if v is not None}
        )
        return replace(wanted, at_least=min(self.last.at_least or 1, wanted.at_most))

    def hosts_at_start(self, policy: str, bounds: Bounds) -> int:
        """Hosts at the beginning: as recorded, within the limits, or those of a static policy."""
        chosen = parse(policy)[0]
        if isinstance(chosen, Static):
            return chosen.hosts
        return min(max(self.hosts, bounds.at_least), bounds.at_most)

    def following(self, before: RecordedStep, policy: str, hosts: int) -> Following:
        """The step as one that gets its records from the step before it."""
        by_slot, total = self.rates.sum(axis=0), before.rates.sum()
        return Following(
            StepId(self.name),
            self.rates.shape[1],
            fan_out=max(float(by_slot.sum() / max(total, 1.0)), 1e-6),
            weights=tuple(by_slot.tolist()) if by_slot.any() else (),
            service_rate=self.service_rate,
            hosts=hosts,
            policy=policy if isinstance(parse(policy)[0], Static) else None,
        )


@dataclass(frozen=True, eq=False)
class RecordedLoad:
    """The newest hour of a recording, or its newest 10,000 epochs. Only from the first second in which rows
    arrived to the last."""

    recording: Recording
    ends_ms: Array
    """End of each second, in milliseconds since 1970."""
    moments: Sequence[Moment]
    """The moment of each second. A long one may be that of several."""
    steps: Sequence[RecordedStep]
    policy: str | None
    """The policy at the end; None if autoscaling was off."""
    epoch_ms: float | None
    """Fixed time of an epoch in milliseconds; None for a live flow."""

    @staticmethod
    def of(recording: Recording) -> RecordedLoad:
        moments = [m for m in recording.moments() if m.steps]
        if not recording.facts.slots:
            raise SettingError(
                "the recorded flow has no keyed step, so it has no hosts to scale",
                hint="use a recording of a flow with a keyed step",
            )
        busy = [n for n, m in enumerate(moments) if any(sum(s.rates) for s in m.steps)]
        if not busy:
            raise SettingError(
                "the recording has no second in which rows arrived", hint="record a longer run"
            )
        moments = moments[busy[0] : busy[-1] + 1]
        ends = np.array([m.time_ms for m in moments])
        live = recording.facts.mode == "live"
        epoch_ms = None if live else _epoch_ms(moments)
        most_ms = min(1000.0 * _MOST_SECONDS, _MOST_EPOCHS * (epoch_ms or np.inf))
        begin_ms = max(ends[0] - 1000 * moments[0].seconds, ends[-1] - most_ms)
        seconds = max(1, round((ends[-1] - begin_ms) / 1000))
        ends_ms = begin_ms + 1000.0 * np.arange(1, seconds + 1)
        places = np.searchsorted(ends, ends_ms - 500.0).clip(max=len(ends) - 1)
        by_second = [moments[place] for place in places]
        steps = [RecordedStep.of(step.step, by_second) for step in by_second[-1].steps]
        return RecordedLoad(recording, ends_ms, by_second, steps, by_second[-1].policy, epoch_ms)

    @property
    def distinct(self) -> list[Moment]:
        """The moments, each once."""
        pairs = zip(self.moments, [None, *self.moments], strict=False)
        return [moment for moment, before in pairs if moment is not before]

    @property
    def policies(self) -> list[str] | None:
        """The recorded policy of each step; None if it was the user's own object, which has no text. A step
        without autoscaling keeps its hosts."""
        if self.policy is None:
            return [f"static({step.hosts})" for step in self.steps]
        try:
            parse(self.policy)
        except SettingError:
            return None
        return [self.policy] * len(self.steps)

    def sla(self, latency: str | float | None, window: str | float | None) -> SLA | None:
        """The newest recorded SLA with these changes of its first bound; None if there is none."""
        recorded = next((m.sla for m in reversed(self.moments) if m.sla is not None), None)
        if recorded is None and latency is None:
            return None
        try:
            bound = SLA(1000, 1000) if recorded is None else recorded
            return replace(
                bound,
                latency_ms=bound.latency_ms if latency is None else milliseconds(latency),
                window_ms=bound.window_ms if window is None else milliseconds(window),
            )
        except FlowError as wrong:
            raise SettingError(wrong.message, hint=wrong.hint) from wrong

    def simulated(
        self, policies: Sequence[str], sla: SLA, changes: dict[str, Any]
    ) -> list[Outcome]:
        """The outcome of each step in a simulation with these policies of the steps."""
        bounds = [s.bounds(p, sla, changes) for s, p in zip(self.steps, policies, strict=True)]
        each = list(zip(self.steps, policies, bounds, strict=True))
        hosts = [step.hosts_at_start(policy, limits) for step, policy, limits in each]
        first, trace = self.steps[0], self._trace(sla)
        plane = replace(self.plane, service_rate=first.service_rate)
        how: dict[str, Any] = {"step": first.name, "hosts": hosts[0]}
        if plane.engine == "continuous":
            how["delta_ms"] = trace.delta_ms * -(-len(trace.counts) // _MOST_LOOKS)
        # The policy without the margin of its text, which is part of the bounds.
        policy = parse(policies[0])[0]
        if len(self.steps) == 1:
            return [simulate(trace, policy, bounds[0], plane, **how)]
        following = [
            self.steps[n].following(self.steps[n - 1], policies[n], hosts[n])
            for n in range(1, len(self.steps))
        ]
        flow = simulate_flow(trace, following, policy, bounds[0], plane, **how)
        return list(flow.steps.values())

    def _trace(self, sla: SLA) -> Trace:
        """The load of the first step, in time slots as short as memory and time allow."""
        rates = self.steps[0].rates
        fits = [ms for ms in _TIME_SLOTS_MS[1:] if rates.size * 1000 / ms <= _MOST_VALUES] or [1000]
        # A window has one time slot or more.
        delta_ms = max(
            (ms for ms in _TIME_SLOTS_MS if ms <= min(fits[0], sla.window_ms)), default=50
        )
        return Trace.of_rates(np.repeat(rates, 1000 // delta_ms, axis=0), float(delta_ms))

    def _bounds(self) -> tuple[LatencyBound, ...]:
        """All bounds of the newest recorded SLA."""
        sla = self.sla(None, None)
        return () if sla is None else sla.bounds

    @property
    def tail(self) -> float:
        """The recorded 99th percentile of latency, as a multiple of the average."""
        known = [m.latency for m in self.moments if m.latency is not None and m.latency.mean_ms > 0]
        return median(one.p99_ms / one.mean_ms for one in known) if known else _USUAL_TAIL

    @property
    def plane(self) -> Plane:
        """Settings of the simulated hosts and engine."""
        plane = Plane(host_price=self.recording.facts.host_price)
        if (took_ms := self._start_ms()) is not None:
            plane = replace(plane, start_host_ms=max(0.0, took_ms - plane.switch_ms))
        if self.epoch_ms is None:
            return plane
        return replace(plane, engine="epochs", epoch_cost_ms=self.epoch_ms, revises=True)

    def _start_ms(self) -> float | None:
        """Usual time until slots were on a new host; None if no host was started."""
        took = [
            entry.facts.get("took_ms")
            for entry in self.recording.entries()
            if entry.event == "done"
            and any(one.get("kind") == "scale_out" for one in entry.facts.get("treatments", ()))
        ]
        known = [ms for ms in took if ms is not None]
        return median(known) if known else None

    def assumed(self) -> tuple[str, ...]:
        """What the simulation takes from the recording, or leaves out, as sentences."""
        plane, first = self.plane, self.steps[0]
        speeds = (f"{step.service_rate:,.0f} records/s for {step.name}" for step in self.steps)
        sentences = [
            f"a host can process {', '.join(speeds)}, as recorded",
            f"a new host takes {plane.start_host_ms / 1000:.1f} s to start"
            + ("" if self._start_ms() is not None else ", a guess: none was started"),
        ]
        if plane.engine == "epochs":
            sentences.append(f"an epoch takes {plane.epoch_cost_ms:,.0f} ms and the hosts' work")
        else:
            sentences.append("rows wait for hosts only: the time of the network is left out")
        if len(self.steps) > 1:
            names = " -> ".join(step.name for step in self.steps)
            sentences.append(
                f"steps follow each other: {names}; the load of {first.name} is recorded"
            )
        if any(bound.p99 for bound in self._bounds()):
            sentences.append(
                "success counts the simulated p99; to decide, control reckons with its usual distance from "
                "the average, not with the recorded one"
            )
        later = {step.name for step in self.steps[1:]}
        if any(bound.p99 and bound.step in later for bound in self._bounds()):
            sentences.append(f"the p99 of a later step alone is {self.tail:.1f} times its average")
        if any(moment.functions for moment in self.moments):
            sentences.append("functions carried a part of the load; the simulation has hosts only")
        return tuple(sentences)


def _service_rate(name: str, steps: Sequence[StepMoment]) -> float:
    """Records per second of a step's host: as control measured it, or by the time that hosts worked."""
    hosts = [host for step in steps for host in step.hosts]
    served = [host.service_rate for host in hosts if host.service_rate]
    if served:
        return max(1.0, median(served))
    useful_ms = sum(host.useful_ms for host in hosts)
    if useful_ms <= 0:
        raise SettingError(
            f"the recording does not say how fast the hosts of {name} are",
            hint="record a longer run",
        )
    return max(1.0, 1000 * sum(host.rows for host in hosts) / useful_ms)


def _epoch_ms(moments: Sequence[Moment]) -> float:
    """Fixed time of an epoch: without the hosts' work, and without waiting for rows or a trigger.

    A row waits for half an epoch on average, and then for its own epoch. So where epochs did not follow
    each other at once, two thirds of the latency tell how long they would have been.
    """
    fixed, before = [], None
    for moment in moments:
        rows = sum(epoch.rows for epoch in moment.epochs)
        work_ms = sum(max((h.useful_ms for h in s.hosts), default=0.0) for s in moment.steps)
        for epoch in moment.epochs:
            if before is not None and before.rows and epoch.latency is not None:
                length_ms, gap_ms = epoch.sink_ms, epoch.started_ms - before.started_ms
                cycle_ms = min(max(epoch.latency.mean_ms / 1.5, length_ms), gap_ms)
                # Hosts with several cores may work for longer than an epoch takes.
                fixed.append(max(1.0, cycle_ms / 4, cycle_ms - work_ms * epoch.rows / rows))
            before = epoch
    return median(fixed) if fixed else Plane.epoch_cost_ms
