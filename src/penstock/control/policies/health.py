"""How a step does, for policies that do not decide by it: the beginning of their decisions."""

from __future__ import annotations

from penstock.control.diagnose.diagnosis import diagnose
from penstock.control.diagnose.project import fitting
from penstock.control.examine.vitals import Vitals
from penstock.control.policies.reasons import nothing_known
from penstock.control.treat.decision import Bounds, Decision


def observed(vitals: Vitals, bounds: Bounds) -> Decision:
    """A decision to do nothing, with the health of the step and its hosts as switch would see it.

    As long as no host's service rate is known, that is all there is to tell.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [99.0, 1.0], hosts=2, service_rate=100.0, latency_ms=700)
    >>> decision = observed(vitals, Bounds(SLA(1000, 1000)))
    >>> decision.health, [(one.host, one.health) for one in decision.hosts]
    ('severe', [('sum/0', 'severe'), ('sum/1', 'moderate')])
    """
    found = diagnose(vitals, bounds, fitting(vitals))
    if found is None:
        return Decision("moderate", (), reasons=(nothing_known(vitals),))
    return Decision(found.health, found.told(), hot_slots=found.hot_slots)
