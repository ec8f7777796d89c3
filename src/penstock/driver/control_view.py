"""What the control plane knows, as JSON values: for `penstock ctl` and whoever else asks."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from penstock.control.elastic import Elastic
from penstock.control.machine import FlowControl
from penstock.control.money import Money
from penstock.control.step_control import StepControl
from penstock.control.treat.offloading import Offloading
from penstock.model import milliseconds
from penstock.offload.driver.keeper import WorkerKeeper


def control_facts(
    machine: FlowControl,
    keeper: WorkerKeeper | None,
    helped: Collection[str],
    money: Money | None,
) -> dict[str, Any]:
    """The SLA, the policy, and each step with its bounds, its hosts and what is under way.

    Also burst workers, if there are to be any, which help those steps; and what was spent, if somebody
    counts it.
    """
    elastic, sla = machine.elastic, machine.sla
    assert elastic is not None and sla is not None
    functions = None if keeper is None else _functions_facts(elastic, keeper, bool(helped))
    if functions is not None:
        functions["left_whole"] = dict(machine.whole)
    return {
        "sla": asdict(sla),
        "policy": elastic.policy_text,
        "dry_run": elastic.dry_run,
        "steps": {step: _step_facts(control) for step, control in machine.all_steps.items()},
        "functions": functions,
        "money": None if money is None else money.facts(),
    }


def _functions_facts(elastic: Elastic, keeper: WorkerKeeper, helps: bool) -> dict[str, Any]:
    return {
        "state": keeper.state if helps else "of no use",
        "trouble": keeper.trouble,
        "at_most": elastic.offload_settings().at_most,
        "patience_ms": milliseconds(elastic.patience),
        "used": {name: _plain(value) for name, value in asdict(keeper.used).items()},
    }


def _step_facts(control: StepControl) -> dict[str, Any]:
    bounds, decision = control.bounds, control.decision
    return {
        "health": None if decision is None else decision.health,
        "share": bounds.share,
        "alert_ms": bounds.alert_ms,
        "margin": bounds.margin,
        "at_least": bounds.at_least,
        "at_most": bounds.at_most,
        "treating": None if control.course.treating is None else str(control.course.treating),
        "hosts": []
        if decision is None
        else [{k: _plain(v) for k, v in host._asdict().items()} for host in decision.hosts],
        "hot_keys": [key.facts() for key in control.hot.keys],
        "offload": None if control.offloading is None else _offload_facts(control.offloading),
    }


def _offload_facts(found: Offloading) -> dict[str, Any]:
    return {
        "functions": found.functions,
        "warm": found.warm,
        "rate": found.rate,
        "redirected": found.redirected,
        "load": _plain(found.load),
        "load_without": _plain(found.load_without),
        "lasts": found.lasts,
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
