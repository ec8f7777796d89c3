"""The journal's entry of a decision: all that it was made from, and what is expected of it."""

from __future__ import annotations

from typing import Any

from penstock.control.diagnose.outlook import Outlook, finite
from penstock.control.diagnose.project import Projection
from penstock.control.examine.vitals import Vitals
from penstock.control.journal.entry import Entry
from penstock.control.treat.decision import Bounds, Decision, HostHealth, after
from penstock.plan.slots import slots_to_text

_MOST_HOSTS = 64
"""An entry tells the figures of so many hosts, those with the highest load."""


def decided(
    vitals: Vitals,
    bounds: Bounds,
    decision: Decision,
    *,
    epoch: int | None = None,
    dry_run: bool = False,
    projection: Projection | None = None,
) -> Entry:
    """What a policy found and wants, and what that may be expected to bring.

    The latter by `projection`, or by the one that fits the vitals.

    >>> from penstock.control.treat.decision import Treatment
    >>> from penstock.model import SLA, HostId, StepId
    >>> vitals = Vitals.even(StepId("sum"), [40.0, 40.0], hosts=1, service_rate=100.0)
    >>> out = Treatment("scale_out", (1,), HostId("sum/0"), HostId("new/1"), "")
    >>> decision = Decision("severe", (), (out,), ("sum/0 is severe",))
    >>> for sentence in decided(vitals, Bounds(SLA(1000, 1000)), decision).text.split(". "):
    ...     print(sentence)
    severe
    scale out: slots 1 from sum/0 to new/1
    sum/0 is severe
    expected: 2 hosts instead of 1, the busiest at 40 % of its service rate instead of 80 %, latency \
to settle at 25 ms instead of ∞
    """
    hosts = sorted(decision.hosts, key=_load, reverse=True)[:_MOST_HOSTS]
    would = "would do, were this no dry run: " if dry_run else ""
    parts = [
        decision.health,
        *(f"{would}{treatment}" for treatment in decision.treatments),
        *(reason.rstrip(". ") for reason in decision.reasons),
    ]
    if decision.hot_slots:
        parts.append(f"more than any host can take: slots {slots_to_text(decision.hot_slots)}")
    facts = {
        "health": decision.health,
        "hosts": [_host(host) for host in hosts],
        "hosts_left_out": len(decision.hosts) - len(hosts),
        "reasons": list(decision.reasons),
        "treatments": [treatment.facts() for treatment in decision.treatments],
        "hot_slots": slots_to_text(decision.hot_slots),
        "bounds": _bounds(bounds),
        "dry_run": dry_run,
    }
    if decision.treatments:
        now = Outlook.of(vitals, bounds, projection)
        then = Outlook.of(after(vitals, decision.treatments), bounds, projection)
        parts.append(f"expected: {then.instead_of(now)}")
        facts |= {"now": now.facts(), "expected": then.facts()}
    return Entry(vitals.now_ms, epoch, vitals.step, "decided", ". ".join(parts), facts)


def _bounds(bounds: Bounds) -> dict[str, Any]:
    return {
        "latency_ms": bounds.latency_ms,
        "window_ms": bounds.sla.window_ms,
        "alert_ms": bounds.alert_ms,
        "margin": bounds.margin,
        "at_least": bounds.at_least,
        "at_most": bounds.at_most,
        "share": bounds.share,
    }


def _host(host: HostHealth) -> dict[str, Any]:
    return {
        "host": host.host,
        "health": host.health,
        "slots": int(host.slots),
        "rate": finite(host.rate),
        "service_rate": finite(host.service_rate),
        "latency_ms": finite(host.latency_ms),
        "projected_ms": finite(host.projected_ms),
    }


def _load(host: HostHealth) -> float:
    """What arrives for a host over what it can take; one that nothing is known of comes last."""
    return host.rate / host.service_rate if host.service_rate > 0 else -1.0
