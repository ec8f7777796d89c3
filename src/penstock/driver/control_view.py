"""The state of control as JSON values, for `penstock ctl` and the dashboard."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, fields
from typing import Any

from penstock.control.machine import FlowControl
from penstock.control.money import Money
from penstock.control.step_control import StepControl
from penstock.model import milliseconds
from penstock.offload.keeper import WorkerKeeper


def control_facts(
    machine: FlowControl,
    keeper: WorkerKeeper | None,
    helped: Collection[str],
    money: Money | None,
) -> dict[str, Any]:
    """The SLA, the policy, and for each step its limits, its hosts and its current treatment.

    Includes the burst workers if there is a `keeper` (`helped` names the steps that they can help), and the
    cost if `money` is tracked.
    """
    elastic, sla = machine.elastic, machine.sla
    assert elastic is not None and sla is not None
    workers = None
    if keeper is not None:
        workers = {
            "state": keeper.state if helped else "of no use",
            "trouble": keeper.trouble,
            "at_most": elastic.offload_settings().at_most,
            "patience_ms": milliseconds(elastic.patience),
            "used": _facts(keeper.used, *(field.name for field in fields(keeper.used))),
            "left_whole": dict(machine.whole),
        }
    return {
        "sla": asdict(sla),
        "policy": elastic.policy_text,
        "dry_run": elastic.dry_run,
        "steps": {step: _step_facts(control) for step, control in machine.all_steps.items()},
        "functions": workers,
        "money": None if money is None else money.facts(),
    }


def _step_facts(control: StepControl) -> dict[str, Any]:
    bounds, decision, offloading = control.bounds, control.decision, control.offloading
    treating, hosts = control.course.treating, () if decision is None else decision.hosts
    return {
        "health": None if decision is None else decision.health,
        **_facts(bounds, "share", "alert_ms", "margin", "at_least", "at_most"),
        "treating": None if treating is None else str(treating),
        "hosts": [_facts(host, *host._fields) for host in hosts],
        "hot_keys": [key.facts() for key in control.hot.keys],
        "offload": None
        if offloading is None
        else {"functions": offloading.workers, **_facts(offloading, *_OFFLOADING)},
    }


_OFFLOADING = ("warm", "rate", "redirected", "load", "load_without", "lasts")
"""Attributes of an `Offloading` that are shown."""


def _facts(value: Any, *names: str) -> dict[str, Any]:
    """Attributes of a value by name; None for floats that JSON cannot express."""
    facts = ((name, getattr(value, name)) for name in names)
    return {n: None if isinstance(x, float) and not math.isfinite(x) else x for n, x in facts}
