"""How functions and the switch work together: one of them at a time answers a burst.

Functions are there at once, hosts are cheaper in the long run. So while functions carry a burst, the
switch sees what hosts really get, and hosts stay as they are. When the burst has lasted, the switch
sees all that arrives, and what hosts would come to without functions: then it scales out, and as
soon as hosts are there functions have nothing left to carry.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds, Decision
from penstock.offload.policy.values import Offloading

_CLEARLY = 1.01
HELD = "functions carry the burst: hosts stay as they are"


def for_switch(vitals: Vitals, bounds: Bounds, offloading: Offloading) -> Vitals:
    """The vitals that the switch should decide on.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [900.0, 900.0], hosts=1, service_rate=1000.0)
    >>> carried = Offloading(np.array([0.5, 0.5]), 2, 2)
    >>> for_switch(vitals, Bounds(SLA(1000, 1000)), carried).rate.tolist()
    [450.0, 450.0]
    >>> seen = for_switch(vitals, Bounds(SLA(1000, 1000)), replace(carried, lasts=True))
    >>> seen.rate.tolist(), seen.latency_ms.tolist()
    ([900.0, 900.0], [1000.0])
    """
    if not offloading.carries:
        return vitals
    if offloading.lasts:
        # The latency is good because of functions: without them it would be as bad as the bound.
        bad_ms = max(float(bounds.sla.latency_ms), _CLEARLY * bounds.alert_ms)
        helped = np.bincount(vitals.owner, offloading.shares, len(vitals.hosts)) > 0
        expected = np.where(helped, bad_ms, np.nan)
        return replace(vitals, latency_ms=np.fmax(vitals.latency_ms, expected))
    kept, newest = offloading.kept, vitals.newest_rate
    return replace(
        vitals,
        rate=vitals.rate * kept,
        backlog=vitals.backlog * kept,
        peak_rate=vitals.peak_rate * kept,
        newest_rate=None if newest is None else newest * kept,
    )


def held(decision: Decision, offloading: Offloading) -> Decision:
    """The decision of a policy, without treatments while functions see to the load.

    >>> from penstock.control.treat.decision import Treatment, new_host
    >>> from penstock.model import HostId
    >>> out = Treatment("scale_out", (1,), HostId("sum/0"), new_host(1), "")
    >>> decision = Decision("severe", (), (out,), ("sum/0 is severe",))
    >>> held(decision, Offloading(np.zeros(2), 0, 0)) is decision
    True
    >>> held(decision, Offloading(np.ones(2), 2, 2, holds=True)).reasons[-1]
    'functions carry the burst: hosts stay as they are'
    """
    if not offloading.holds or not decision.treatments:
        return decision
    return replace(decision, treatments=(), reasons=(*decision.reasons, HELD))
