"""Simulation of a trace through one step, or through several with one end-to-end bound.

Several steps share the bound. Every few seconds the shares are adjusted so that the steps keep their parts
of it equally often (StreamSwitch, section 6.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.treat.budget import Budget
from penstock.control.treat.decision import Bounds, Policy
from penstock.errors import SettingError
from penstock.model import StepId
from penstock.sim import loops
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import FlowOutcome, Outcome
from penstock.sim.plane import Following, Plane
from penstock.sim.stage import SimStage
from penstock.sim.trace import Trace


def simulate(
    trace: Trace,
    policy: str | Policy,
    bounds: Bounds,
    plane: Plane | None = None,
    *,
    hosts: int | None = None,
    delta_ms: float | None = None,
    seed: int = 1,
    step: str = "step",
    warm_up_ms: float = 0.0,
    deadline_ms: float | None = None,
    tell: Callable[[float], None] = lambda now_ms: None,
) -> Outcome:
    """Simulate a trace through one step that is scaled by a policy.

    The step starts with `hosts` hosts (None: `bounds.at_least`, or the number of a static policy). Control
    evaluates it every `delta_ms` (None: every time slot of the trace), or after every epoch. Success and
    hosts count from `warm_up_ms` on. Burst workers, if the plane has any, should clear a backlog within
    `deadline_ms` (None: the window of the SLA). `tell` is called after each evaluation with the simulated
    milliseconds so far. A policy object is copied, not changed.

    >>> from penstock.model import SLA
    >>> trace = Trace.of_rates(np.full((300, 8), 100.0))
    >>> outcome = simulate(trace, "static(1)", Bounds(SLA(1000, 1000)), Plane(service_rate=1000.0))
    >>> outcome.success, outcome.hosts, outcome.arrived
    (1.0, 1.0, 24000)
    """
    plane = Plane() if plane is None else plane
    _check_warm_up(warm_up_ms, trace)
    trace, per_look = paced(trace, delta_ms, plane)
    stage = SimStage(
        StepId(step),
        Ledger(trace.counts, trace.delta_ms),
        hosts,
        plane,
        np.random.default_rng(seed),
        policy,
        bounds,
        warm_up_ms=warm_up_ms,
        deadline_ms=deadline_ms,
    )
    flow = loops.Controlled([stage], per_look * trace.delta_ms)
    loops.run(flow, (), per_look, tell)
    return flow.outcomes()[step]


def simulate_flow(
    trace: Trace,
    following: Sequence[Following],
    policy: str | Policy,
    bounds: Bounds,
    plane: Plane | None = None,
    *,
    step: str = "step",
    hosts: int | None = None,
    shares: Sequence[float] | None = None,
    share_every_ms: float = 10_000.0,
    delta_ms: float | None = None,
    seed: int = 1,
    warm_up_ms: float = 0.0,
    deadline_ms: float | None = None,
    tell: Callable[[float], None] = lambda now_ms: None,
) -> FlowOutcome:
    """Simulate a trace through a first step, and its output through the steps that follow.

    `bounds` holds the end-to-end SLA; its other limits apply to each step. `shares` are the steps' shares of
    the bound; if None, they start out equal and are adjusted every `share_every_ms`. Burst workers help the
    first step only, unless a following step has a plane of its own with burst workers. For the other
    arguments see `simulate`.

    >>> from penstock.model import SLA
    >>> trace = Trace.of_rates(np.full((200, 4), 100.0))
    >>> count = Following(StepId("count"), slots=4, fan_out=2.0, hosts=2)
    >>> outcome = simulate_flow(trace, [count], "switch", Bounds(SLA(2000, 1000)), step="split")
    >>> outcome.success, list(outcome.steps)
    (1.0, ['split', 'count'])
    """
    plane = Plane() if plane is None else plane
    _check_warm_up(warm_up_ms, trace)
    trace, per_look = paced(trace, delta_ms, plane)
    begin = bounds.at_least if hosts is None else hosts
    first = Following(StepId(step), trace.slots, hosts=begin, plane=plane)
    steps = [first, *following]
    stages = []
    for each, random in zip(steps, np.random.default_rng(seed).spawn(len(steps)), strict=True):
        arrived = trace.counts if each is first else np.zeros((len(trace.counts), each.slots))
        stage = SimStage(
            each.step,
            Ledger(arrived, trace.delta_ms),
            each.hosts,
            each.plane or replace(plane, burst_workers=None),
            random,
            each.policy or policy,
            bounds,
            service_rate=each.service_rate,
            warm_up_ms=warm_up_ms,
            deadline_ms=deadline_ms,
        )
        stages.append(stage)
    budget = Budget([each.step for each in steps])
    flow = loops.Controlled(stages, per_look * trace.delta_ms)
    initial = budget.shares if shares is None else dict(zip(budget.shares, shares, strict=True))
    flow.share(0.0, initial)
    sharing = _Sharing(flow, None if shares is not None else budget, share_every_ms, tell)
    loops.run(flow, following, per_look, sharing.look)
    judged_from = round(warm_up_ms / trace.delta_ms)
    success = stages[-1].ledger.success(bounds.sla, judged_from, end_to_end=True)
    return FlowOutcome(flow.outcomes(), success, tuple(sharing.history))


class _Sharing:
    """Adjusts the shares of the bound by how often each step has kept its part recently."""

    def __init__(
        self,
        flow: loops.Controlled,
        budget: Budget | None,
        every_ms: float,
        tell: Callable[[float], None],
    ) -> None:
        self._flow, self._budget, self._every_ms, self._tell = flow, budget, every_ms, tell
        self._last_ms = 0.0
        self.history = [(0.0, self._shares())]
        """Changes of the shares: the time in milliseconds, and the shares from then on."""

    def look(self, now_ms: float) -> None:
        """Adjust the shares if it is time. Called after each evaluation."""
        if self._budget is not None and now_ms - self._last_ms >= self._every_ms:
            stages = self._flow.stages
            delta_ms = stages[0].ledger.delta_ms
            first, last = round(self._last_ms / delta_ms), round(now_ms / delta_ms)
            self._last_ms = now_ms
            success: dict[str, float] = {
                stage.step: float(stage.ledger.success(stage.own_bound, first, last).mean())
                for stage in stages
            }
            self._flow.share(now_ms, self._budget.update(success))
            if self._shares() != self.history[-1][1]:
                self.history.append((now_ms, self._shares()))
        self._tell(now_ms)

    def _shares(self) -> dict[str, float]:
        return {str(stage.step): stage.share for stage in self._flow.stages}


def _check_warm_up(warm_up_ms: float, trace: Trace) -> None:
    if not 0 <= warm_up_ms < trace.duration_ms:
        raise SettingError(
            f"the warm-up takes {warm_up_ms / 1000:g} s of a run of {trace.duration_ms / 1000:g} s",
            hint="use a shorter warm-up, 0 s or more, or a longer run",
        )


def paced(trace: Trace, delta_ms: float | None, plane: Plane) -> tuple[Trace, int]:
    """The trace in time slots that fit those of control, and their number per time slot of control.

    >>> trace = Trace.of_rates(np.full((10, 1), 100.0), delta_ms=100.0)
    >>> [(t.delta_ms, n) for t, n in (paced(trace, ms, Plane()) for ms in (None, 20, 500))]
    [(100.0, 1), (20, 1), (100.0, 5)]
    """
    if delta_ms is None or delta_ms == trace.delta_ms:
        return trace, 1
    several = round(delta_ms / trace.delta_ms)
    # Shorter time slots give more accurate latencies, so they are not made longer without need.
    if plane.engine == "continuous" and several and several * trace.delta_ms == delta_ms:
        return trace, several
    return trace.every(delta_ms), 1
