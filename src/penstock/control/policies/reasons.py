"""Sentences that explain the decisions of the switch policy."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.diagnosis import Diagnosis
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.outlook import hosts_text, milliseconds_text
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds


def severe(vitals: Vitals, bounds: Bounds, diagnosis: Diagnosis, host: int) -> str:
    """The reason why a host is severe, with all figures."""
    late = f"latency {diagnosis.latency_ms[host]:,.0f} ms is above the alert of {bounds.alert_ms:,.0f} ms"
    projected = diagnosis.projected_ms[host]
    will = (
        f"would settle at {projected:,.0f} ms, above the bound of {diagnosis.bound_ms:,.0f} ms"
        if np.isfinite(projected)
        else "would grow without limit"
    )
    extra = diagnosis.excess[host]
    excess = f", excess backlog of {extra:,.0f} records" if extra > 0 else ""
    return (
        f"{vitals.hosts[host]} is severe: {late} and {will} (arrivals {diagnosis.rate[host]:,.0f}/s"
        f"{excess}, service {diagnosis.service_rate[host]:,.0f}/s less a margin of "
        f"{100 * bounds.margin:.0f} %)"
    )


def helpless(vitals: Vitals, bounds: Bounds, load: Load, host: int) -> str:
    """The reason why nothing is done for a severe host."""
    name = vitals.hosts[host] if host < len(vitals.hosts) else "a new host"
    owned = np.flatnonzero(load.owner == host)
    hottest = owned[load.slot_rate[owned].argmax()]
    most = load.capacity.max()
    if load.slot_rate[hottest] >= most:
        why = (
            f"slot {hottest} alone has arrivals of {load.slot_rate[hottest]:,.0f}/s, more than the "
            f"capacity of a host, {most:,.0f}/s"
        )
    elif len(owned) == 1:
        why = f"it has only slot {hottest}, which cannot be divided"
    elif load.hosts >= bounds.at_most:
        why = (
            f"the step has its maximum of {bounds.at_most:,} hosts, and no balance would improve it "
            "clearly"
        )
    else:
        idle_ms = load.gain[host] / load.capacity[host]
        why = f"it is too slow: even when idle it would take {idle_ms:,.0f} ms"
    return f"{name} cannot be relieved: {why}"


def others_wait(hosts: int) -> str:
    """The note that more severe hosts are left to later decisions."""
    which = "one more host is" if hosts == 1 else f"{hosts:,} more hosts are"
    return f"{which} severe and will be treated after this"


def too_few(vitals: Vitals, bounds: Bounds, then: int) -> str:
    """The reason why a step below its minimum gets hosts. It has `then` hosts after this decision."""
    less = "" if then >= bounds.at_least else f"; its slots can be divided among {then:,} for now"
    return f"the step has {hosts_text(len(vitals.hosts))}; the minimum is {bounds.at_least:,}{less}"


def too_many(vitals: Vitals, bounds: Bounds) -> str:
    """The reason why a step above its maximum loses a host."""
    return f"the step has {hosts_text(len(vitals.hosts))}; the maximum is {bounds.at_most:,}"


def relieved(vitals: Vitals, diagnosis: Diagnosis, then: Floats, source: int, target: int) -> str:
    """The expected effect of moving slots. `then` are the latencies that hosts would settle at."""
    new = target >= len(vitals.hosts)
    name = "the new host" if new else vitals.hosts[target]
    return (
        f"{vitals.hosts[source]} would settle at {milliseconds_text(then[source])} instead of "
        f"{milliseconds_text(diagnosis.projected_ms[source])}, {name} at "
        f"{milliseconds_text(then[target])}"
    )


def dispensable(vitals: Vitals, diagnosis: Diagnosis, prudent: Load, source: int) -> str:
    """The reason why a host can be removed."""
    return (
        f"{vitals.hosts[source]} is not needed: the step is {diagnosis.health}, and the other hosts can "
        f"take its {diagnosis.rate[source]:,.0f}/s, even {prudent.rate[source]:,.0f}/s with a reserve"
    )


def taken_over(vitals: Vitals, diagnosis: Diagnosis, target: int, slack: float) -> str:
    """The expected latency of a host that takes slots of a removed host."""
    would = milliseconds_text(1.0 / slack if slack > 0 else np.inf)
    return (
        f"{vitals.hosts[target]} would settle at {would} at most; the bound is "
        f"{diagnosis.bound_ms:,.0f} ms"
    )
