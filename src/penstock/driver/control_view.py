"""What the control plane knows, as JSON values: for `penstock ctl` and whoever else asks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.control.controller import StepControl
from penstock.control.elastic import Elastic
from penstock.model import SLA


def control_facts(
    sla: SLA, elastic: Elastic, controls: Mapping[str, StepControl]
) -> dict[str, Any]:
    """The SLA, the policy, and each step with its bounds, its hosts and what is under way."""
    return {
        "sla": asdict(sla),
        "policy": elastic.policy_text,
        "dry_run": elastic.dry_run,
        "steps": {step: _step_facts(control) for step, control in controls.items()},
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
        "treating": None if control.treating is None else str(control.treating),
        "hosts": []
        if decision is None
        else [{k: _plain(v) for k, v in host._asdict().items()} for host in decision.hosts],
        "hot_keys": [key.to_json() for key in control.hot.keys],
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
