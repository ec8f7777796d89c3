"""Burst workers beside hosts: what their policy is told and answers, and what hosts' policies make of it.

One of them at a time answers a burst. Burst workers are there at once, hosts are cheaper in the long run. So
while burst workers carry a burst, a policy of hosts sees what hosts really get, and hosts stay as they are.
When the burst has lasted, it sees all that arrives, and what hosts would come to without burst workers: then
it scales out, and as soon as hosts are there burst workers have nothing left to carry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.money import Costs
from penstock.control.treat.decision import Bounds, Decision
from penstock.errors import SettingError
from penstock.model import SLA

_LEAST = 0.5
_CLEARLY = 1.01
HELD = "functions carry the burst: hosts stay as they are"


@dataclass(frozen=True)
class OffloadSettings:
    """When burst workers help hosts, how many of them, and for how long.

    >>> OffloadSettings(at_most=50, speed=0.8).target
    0.7
    """

    at_most: int = 200
    """Burst workers at a time."""
    speed: float = 1.0
    """Throughput of a burst worker relative to a host's: the paper's rho."""
    start_ms: float = 0.0
    """What a burst worker takes to start. Those that are not ready are not given rows: all of an epoch
    would wait for them. They are asked for, and used when they are there."""
    low: float = 0.6
    high: float = 0.8
    """The load of a host that is as it should be: from low to high."""
    target: float = 0.7
    """The load that hosts and burst workers are given where burst workers help."""
    in_a_row: int = 2
    """Observations in a row that must agree before anything changes."""
    apart_ms: float = 200.0
    """What is seen sooner after an observation, of the same arrivals, is not another one."""
    deadline_ms: float | None = None
    """The time in which a backlog should be worked off. None: the window of the SLA."""
    merge_cost: float = 1.0
    """What it costs a host to merge one partial state, in records."""
    partials_per_row: float = 0.1
    """Partial states that burst workers make of a row, before that was measured."""
    patience_ms: float = 120_000.0
    """A burst that burst workers carry for longer is one that lasts."""
    warm_for: float = 5.0
    """Burst workers are kept warm for so many times the stable load."""
    costs: Costs = field(default_factory=Costs)
    """Prices that tell when hosts would have been cheaper."""

    def __post_init__(self) -> None:
        if not 0 < self.low < self.target < self.high <= 1:
            raise SettingError(
                f"low is {self.low:g}, target is {self.target:g} and high is {self.high:g}",
                hint="use loads from 0 to 1 in ascending order: low, target, high, such as 0.6, 0.7, 0.8",
            )
        if self.speed <= 0 or self.at_most < 0 or self.in_a_row < 1:
            raise SettingError(
                f"at_most is {self.at_most}, speed is {self.speed:g} and in_a_row is {self.in_a_row}",
                hint="use 0 or more for at_most, more than 0 for speed, and 1 or more for in_a_row",
            )
        if self.deadline_ms is not None and self.deadline_ms <= 0:
            raise SettingError(
                f"deadline_ms is {self.deadline_ms:g}", hint="use more than 0, or None"
            )

    def within(self, part: float) -> OffloadSettings:
        """With lower loads, if at `high` the bound of a step would not be kept, but only at `part`.

        Where even an idle host keeps it hardly or not, half of the loads is as low as it gets.

        >>> lower = OffloadSettings().within(0.6)
        >>> round(lower.low, 3), round(lower.target, 3), round(lower.high, 3)
        (0.45, 0.525, 0.6)
        """
        if part >= self.high:
            return self
        less = max(part / self.high, _LEAST)
        return replace(self, low=less * self.low, target=less * self.target, high=less * self.high)


def recovery_ms(interval_ms: float | None, sla: SLA) -> float:
    """The time in which a step's backlog should be gone.

    That is the interval of its windows, so that the next result is whole and in time; where it has
    no windows, or windows so long that the SLA would not be kept, the window of the SLA.

    >>> recovery_ms(500, SLA(1000, 2000)), recovery_ms(None, SLA(1000, 2000))
    (500.0, 2000.0)
    """
    return float(sla.window_ms if interval_ms is None else min(interval_ms, sla.window_ms))


@dataclass(frozen=True, eq=False)
class Offloading:
    """What burst workers shall carry, from the next epoch on. Never changed in place."""

    shares: Floats
    """Per slot: the part of its rows that goes to burst workers, from 0 to 1."""
    workers: int
    """How many of them at a time; 0 where nothing goes to them."""
    warm: int
    """How many should be ready."""
    reasons: tuple[str, ...] = ()
    """Sentences that let a reader follow what has changed; empty if nothing has."""
    lasts: bool = False
    """The burst has lasted, or burst workers have cost more than hosts would have: time for hosts."""
    holds: bool = False
    """Burst workers carry a burst that has not lasted, or are about to: hosts stay as they are."""
    merge: float = 0.0
    """What a row that goes to burst workers costs its host all the same, in records."""
    rate: float = 0.0
    """Records a second that arrive for the step."""
    redirected: float = 0.0
    """Records a second that go to burst workers."""
    backlog: float = 0.0
    """Records that wait because more arrived than could be taken."""
    load: float = 0.0
    """Load of the busiest host: what it gets over what it can take."""
    load_without: float = 0.0
    """Load of the busiest host, were there no burst workers."""

    @property
    def carries(self) -> bool:
        """Whether anything goes to burst workers."""
        return bool(self.workers > 0 and self.shares.any())

    @property
    def kept(self) -> Floats:
        """Per slot: what a host has to do for its rows, relative to doing all of them itself.

        >>> import numpy as np
        >>> Offloading(np.array([0.0, 0.5, 1.0]), 2, 2, merge=0.25).kept.tolist()
        [1.0, 0.625, 0.25]
        """
        kept: Floats = 1.0 - self.shares * (1.0 - self.merge)
        return kept


def for_switch(vitals: Vitals, bounds: Bounds, offloading: Offloading) -> Vitals:
    """The vitals that the switch should decide on.

    >>> from penstock.model import StepId
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
        # The latency is good because of burst workers: without them it would be as bad as the bound.
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
    """The decision of a policy, without treatments while burst workers see to the load.

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
