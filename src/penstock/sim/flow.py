"""Several steps, one after the other, under control with one end-to-end bound.

The bound is shared among the steps. Every few seconds the shares are moved so that the steps keep
their parts of it equally often (StreamSwitch, section 6.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.treat.budget import Budget
from penstock.control.treat.decision import Bounds, Policy
from penstock.model import StepId
from penstock.sim import loops
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import FlowOutcome
from penstock.sim.plane import Following, Plane
from penstock.sim.run import check_hosts, check_warm_up, paced, prepared, settled
from penstock.sim.stage import Stage
from penstock.sim.trace import Trace


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
    """Let a trace pass through a first step, and what it puts out through those that follow.

    `bounds` holds the end-to-end SLA; its other limits are those of each step. The steps have these
    `shares` of the bound; None: they begin with equal ones, which move every `share_every_ms`.
    Functions help the first step only, unless a following one has a plane of its own with some. All
    else is as with `simulate`, for each step.

    >>> from penstock.model import SLA
    >>> trace = Trace.of_rates(np.full((200, 4), 100.0))
    >>> count = Following(StepId("count"), slots=4, fan_out=2.0, hosts=2)
    >>> outcome = simulate_flow(trace, [count], "switch", Bounds(SLA(2000, 1000)), step="split")
    >>> outcome.success, list(outcome.steps)
    (1.0, ['split', 'count'])
    """
    plane = Plane() if plane is None else plane
    check_warm_up(warm_up_ms, trace)
    trace, per_look = paced(trace, delta_ms, plane)
    names = [StepId(step), *(follower.step for follower in following)]
    budget = Budget(names)
    given = budget.shares if shares is None else dict(zip(names, shares, strict=True))
    begin = [bounds.at_least if hosts is None else hosts, *(one.hosts for one in following)]
    rates = [None, *(one.service_rate for one in following)]
    ledgers = [Ledger(trace.counts, trace.delta_ms)]
    for one in following:
        empty = np.zeros((len(trace.counts), one.slots))
        ledgers.append(Ledger(empty, trace.delta_ms))
    randoms = np.random.default_rng(seed).spawn(len(names))
    policies = [policy, *(one.policy or policy for one in following)]
    planes = [plane, *(one.plane or replace(plane, functions=None) for one in following)]
    stages = []
    for n, (name, ledger, first) in enumerate(zip(names, ledgers, begin, strict=True)):
        check_hosts(first, ledger.arrived.shape[1])
        chosen, margin = prepared(policies[n])
        whole = bounds if margin is None else replace(bounds, margin=margin)
        stage = Stage(
            name,
            ledger,
            first,
            planes[n],
            randoms[n],
            None if settled(chosen, first, planes[n]) else chosen,
            whole,
            rates[n],
            warm_up_ms,
            deadline_ms,
        )
        stages.append(stage)
    flow = loops.Controlled(stages, per_look * trace.delta_ms)
    flow.share(0.0, given)
    sharing = _Sharing(flow, None if shares is not None else budget, share_every_ms, tell)
    if plane.engine == "epochs":
        loops.epochs(flow, following, sharing.look)
    else:
        loops.continuous(flow, following, per_look, sharing.look)
    judged_from = round(warm_up_ms / trace.delta_ms)
    return FlowOutcome(
        flow.outcomes(),
        ledgers[-1].success(bounds.sla, judged_from, end_to_end=True),
        tuple(sharing.told),
    )


class _Sharing:
    """Moves the shares of the bound by how often each step has kept its part of late."""

    def __init__(
        self,
        flow: loops.Controlled,
        budget: Budget | None,
        every_ms: float,
        tell: Callable[[float], None],
    ) -> None:
        self._flow, self._budget, self._every_ms, self._tell = flow, budget, every_ms, tell
        self._last_ms = 0.0
        self.told = [(0.0, self._shares())]
        """The shares, and since when."""

    def look(self, now_ms: float) -> None:
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
            if self._shares() != self.told[-1][1]:
                self.told.append((now_ms, self._shares()))
        self._tell(now_ms)

    def _shares(self) -> dict[str, float]:
        return {str(stage.step): stage.share for stage in self._flow.stages}
