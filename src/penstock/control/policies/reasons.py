"""The sentences by which the switch explains itself."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.diagnosis import Diagnosis
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.outlook import hosts_text, milliseconds_text
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds


def severe(vitals: Vitals, bounds: Bounds, found: Diagnosis, host: int) -> str:
    """Why a host is severe, with all figures."""
    late = (
        f"latency {found.latency_ms[host]:,.0f} ms is above the alert of {bounds.alert_ms:,.0f} ms"
    )
    projected = found.projected_ms[host]
    will = (
        f"would settle at {projected:,.0f} ms, above the bound of {found.bound_ms:,.0f} ms"
        if np.isfinite(projected)
        else "would grow without end"
    )
    excess = f", backlog {found.excess[host]:,.0f} too many" if found.excess[host] > 0 else ""
    return (
        f"{vitals.hosts[host]} is severe: {late} and {will} (arrivals {found.rate[host]:,.0f}/s"
        f"{excess}, service {found.service_rate[host]:,.0f}/s less a margin of "
        f"{100 * bounds.margin:.0f} %)"
    )


def helpless(vitals: Vitals, bounds: Bounds, load: Load, host: int) -> str:
    """Why nothing is done for a severe host."""
    name = vitals.hosts[host] if host < len(vitals.hosts) else "a new host"
    owned = np.flatnonzero(load.owner == host)
    hottest = owned[load.slot_rate[owned].argmax()]
    most = load.capacity.max()
    if load.slot_rate[hottest] >= most:
        why = (
            f"slot {hottest} alone brings {load.slot_rate[hottest]:,.0f}/s, more than the "
            f"{most:,.0f}/s that a host can take"
        )
    elif len(owned) == 1:
        why = f"it has only slot {hottest}, which cannot be divided"
    elif load.hosts >= bounds.at_most:
        why = (
            f"the step has all the hosts that it may have, {bounds.at_most:,}, and no balance would "
            "make it clearly better off"
        )
    else:
        idle_ms = load.gain[host] / load.capacity[host]
        why = f"it is too slow: even idle it would take {idle_ms:,.0f} ms"
    return f"{name} cannot be relieved: {why}"


def others_wait(hosts: int) -> str:
    which = "one more host is" if hosts == 1 else f"{hosts:,} more hosts are"
    return f"{which} severe: to be treated after this"


def too_few(vitals: Vitals, bounds: Bounds, then: int) -> str:
    """Why a step gets hosts that lacks some; it would have `then` hosts after this decision."""
    less = "" if then >= bounds.at_least else f"; its slots can be divided among {then:,} for now"
    return f"the step has {hosts_text(len(vitals.hosts))} and should have {bounds.at_least:,} at least{less}"


def too_many(vitals: Vitals, bounds: Bounds) -> str:
    return f"the step has {hosts_text(len(vitals.hosts))} and may have {bounds.at_most:,} at most"


def relieved(vitals: Vitals, found: Diagnosis, then: Floats, source: int, target: int) -> str:
    """What slots that go from source to target bring; `then` are the latencies to settle at."""
    new = target >= len(vitals.hosts)
    name = "the new host" if new else vitals.hosts[target]
    return (
        f"{vitals.hosts[source]} would settle at {milliseconds_text(then[source])} instead of "
        f"{milliseconds_text(found.projected_ms[source])}, {name} at "
        f"{milliseconds_text(then[target])}"
    )


def dispensable(vitals: Vitals, found: Diagnosis, prudent: Load, source: int) -> str:
    """Why a host may go."""
    return (
        f"{vitals.hosts[source]} can go: the step is {found.health}, and the others can take its "
        f"{found.rate[source]:,.0f}/s, even {prudent.rate[source]:,.0f}/s with what is held in reserve"
    )


def taken_over(vitals: Vitals, found: Diagnosis, target: int, slack: float) -> str:
    """What a host that takes slots of one that goes is expected to come to."""
    would = milliseconds_text(1.0 / slack if slack > 0 else np.inf)
    return (
        f"{vitals.hosts[target]} would settle at {would} at most, the bound is "
        f"{found.bound_ms:,.0f} ms"
    )
