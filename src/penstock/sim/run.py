"""One step under control over a trace."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np

from penstock.control.policies.parse import parse
from penstock.control.policies.static import Static
from penstock.control.treat.decision import Bounds, Policy
from penstock.errors import SettingError
from penstock.model import StepId
from penstock.sim import loops
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Plane
from penstock.sim.stage import Stage
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
    """Let a trace pass through a step whose hosts follow a policy.

    The step begins with `hosts` hosts (None: `bounds.at_least`, or what a static policy wants).
    Control examines and decides every `delta_ms` (None: every time slot of the trace), or after
    every epoch. Success and hosts are judged from `warm_up_ms` on. Functions, if the plane has any,
    work off what waits within `deadline_ms` (None: the window of the SLA). `tell` is called after each
    look with the milliseconds that have passed. A policy that is handed in stays as it was.

    >>> from penstock.model import SLA
    >>> trace = Trace.of_rates(np.full((300, 8), 100.0))
    >>> outcome = simulate(trace, "static(1)", Bounds(SLA(1000, 1000)), Plane(service_rate=1000.0))
    >>> outcome.success, outcome.hosts, outcome.arrived
    (1.0, 1.0, 24000)
    """
    plane = Plane() if plane is None else plane
    chosen, margin = prepared(policy)
    if margin is not None:
        bounds = replace(bounds, margin=margin)
    if hosts is None:
        hosts = chosen.hosts if isinstance(chosen, Static) else bounds.at_least
    check_hosts(hosts, trace.slots)
    check_warm_up(warm_up_ms, trace)
    trace, per_look = paced(trace, delta_ms, plane)
    stage = Stage(
        StepId(step),
        Ledger(trace.counts, trace.delta_ms),
        hosts,
        plane,
        np.random.default_rng(seed),
        None if settled(chosen, hosts, plane) else chosen,
        bounds,
        warm_up_ms=warm_up_ms,
        deadline_ms=deadline_ms,
    )
    flow = loops.Controlled([stage], per_look * trace.delta_ms)
    if plane.engine == "epochs":
        loops.epochs(flow, (), tell)
    else:
        loops.continuous(flow, (), per_look, tell)
    return flow.outcomes()[step]


def prepared(policy: str | Policy) -> tuple[Policy, float | None]:
    """A policy object of its own for a step, and the margin that its text names, if it does."""
    chosen, margin = parse(policy)
    return deepcopy(chosen), margin


def settled(policy: Policy, hosts: int, plane: Plane) -> bool:
    """What is static and has all its hosts will never do anything: not asking it saves the time."""
    return isinstance(policy, Static) and policy.hosts == hosts and plane.functions is None


def check_hosts(hosts: int, slots: int) -> None:
    if not 1 <= hosts <= slots:
        raise SettingError(
            f"{hosts} hosts for {slots} slots", hint="begin with 1 host or more, a slot for each"
        )


def check_warm_up(warm_up_ms: float, trace: Trace) -> None:
    if not 0 <= warm_up_ms < trace.duration_ms:
        raise SettingError(
            f"{warm_up_ms / 1000:g} s to warm up, of {trace.duration_ms / 1000:g} s",
            hint="leave some time to be judged",
        )


def paced(trace: Trace, delta_ms: float | None, plane: Plane) -> tuple[Trace, int]:
    """The trace in time slots that fit those of control, and how many go into one of control's.

    >>> trace = Trace.of_rates(np.full((10, 1), 100.0), delta_ms=100.0)
    >>> [(t.delta_ms, n) for t, n in (paced(trace, ms, Plane()) for ms in (None, 20, 500))]
    [(100.0, 1), (20, 1), (100.0, 5)]
    """
    if delta_ms is None or delta_ms == trace.delta_ms:
        return trace, 1
    several = round(delta_ms / trace.delta_ms)
    # Latencies are as exact as time slots are short, so these are not made longer without need.
    if plane.engine == "continuous" and several and several * trace.delta_ms == delta_ms:
        return trace, several
    return trace.every(delta_ms), 1
