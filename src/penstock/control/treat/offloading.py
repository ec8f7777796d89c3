"""Burst workers beside hosts: settings and decisions of their policy, and their effect on hosts' policies.

Only one of the two responds to a burst. Burst workers are ready at once; hosts are cheaper in the long run.
While burst workers carry a burst, the policy of hosts sees only the load that is left for hosts, and the
hosts stay as they are. When the burst lasts too long, the policy sees all arrivals, and the latency that
hosts would have without burst workers. It scales out then, and once the new hosts are up, burst workers have
nothing left to carry.
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
    """Settings for burst workers: when they help hosts, how many, and for how long.

    >>> OffloadSettings(at_most=50, speed=0.8).target
    0.7
    """

    at_most: int = 200
    """Maximum number of burst workers that run at the same time."""
    speed: float = 1.0
    """Throughput of a burst worker relative to a host's, until it is measured: the paper's rho."""
    start_ms: float = 0.0
    """Milliseconds that a burst worker takes to start. Workers that are not ready get no rows, since the
    whole epoch would wait for them. They are started, and used from when they are ready."""
    low: float = 0.6
    """Load of a host, from 0 to 1, below which it needs no help."""
    high: float = 0.8
    """Load of a host, from 0 to 1, above which burst workers help."""
    target: float = 0.7
    """Load to aim for, from 0 to 1, of hosts and burst workers while burst workers help."""
    in_a_row: int = 2
    """Number of observations in a row that must agree before anything changes."""
    apart_ms: float = 200.0
    """Minimum milliseconds between two observations of the same arrivals."""
    deadline_ms: float | None = None
    """Milliseconds in which a backlog should be gone. None: the window of the SLA."""
    merge_cost: float = 1.0
    """Cost for a host to merge one partial state, in records."""
    partials_per_row: float = 0.1
    """Assumed partial states per row from burst workers, until the first measurement."""
    patience_ms: float = 120_000.0
    """Milliseconds that burst workers carry a burst before hosts take over."""
    warm_for: float = 5.0
    """Multiple of the stable load that warm burst workers can carry."""
    costs: Costs = field(default_factory=Costs)
    """Prices, which decide when hosts would have been cheaper."""

    def __post_init__(self) -> None:
        if not 0 < self.low < self.target < self.high <= 1:
            raise SettingError(
                f"low is {self.low:g}, target is {self.target:g} and high is {self.high:g}",
                hint="use 0 < low < target < high <= 1, such as 0.6, 0.7 and 0.8",
            )
        if self.speed <= 0:
            raise SettingError(f"speed is {self.speed:g}", hint="use more than 0, such as 1")
        if self.at_most < 0:
            raise SettingError(f"at_most is {self.at_most}", hint="use 0 or more")
        if self.in_a_row < 1:
            raise SettingError(f"in_a_row is {self.in_a_row}", hint="use 1 or more")
        if self.deadline_ms is not None and self.deadline_ms <= 0:
            raise SettingError(
                f"deadline_ms is {self.deadline_ms:g}", hint="use more than 0, or None"
            )

    def within(self, part: float) -> OffloadSettings:
        """Settings with lower loads, if hosts keep the bound only up to a load of `part`.

        The loads are halved at most, even if the bound cannot be kept with that.

        >>> lower = OffloadSettings().within(0.6)
        >>> round(lower.low, 3), round(lower.target, 3), round(lower.high, 3)
        (0.45, 0.525, 0.6)
        """
        if part >= self.high:
            return self
        less = max(part / self.high, _LEAST)
        return replace(self, low=less * self.low, target=less * self.target, high=less * self.high)


def recovery_ms(interval_ms: float | None, sla: SLA) -> float:
    """Milliseconds in which a step's backlog should be gone.

    This is the interval of its windows, so that the next result is complete and in time. It is the window of
    the SLA for a step without windows, or with longer ones.

    >>> recovery_ms(500, SLA(1000, 2000)), recovery_ms(None, SLA(1000, 2000))
    (500.0, 2000.0)
    """
    return float(sla.window_ms if interval_ms is None else min(interval_ms, sla.window_ms))


@dataclass(frozen=True, eq=False)
class Offloading:
    """The load that burst workers carry from the next epoch on. Never changed in place."""

    shares: Floats
    """Share of each slot's rows that goes to burst workers, from 0 to 1."""
    workers: int
    """Number of burst workers that run at the same time; 0 if they carry nothing."""
    warm: int
    """Number of burst workers to keep warm."""
    reasons: tuple[str, ...] = ()
    """Sentences that explain the change; empty if nothing changed."""
    lasts: bool = False
    """Whether hosts should take over: the burst lasts, or hosts would have been cheaper by now."""
    holds: bool = False
    """Whether hosts should stay as they are: burst workers carry a burst, or are about to."""
    merge: float = 0.0
    """Work that a row sent to burst workers still leaves for its host, in records."""
    rate: float = 0.0
    """Arrivals of the step in records per second."""
    redirected: float = 0.0
    """Records per second that go to burst workers."""
    backlog: float = 0.0
    """Number of records that wait because hosts could not keep up."""
    load: float = 0.0
    """Load of the busiest host: its arrivals over its capacity."""
    load_without: float = 0.0
    """Load that the busiest host would have without burst workers."""
    by_cpu: bool = False
    """Whether capacities follow from CPU loads that were measured. If not, they follow from working time:
    CPU is not measured, or hosts wait while they work."""
    cpu: float | None = None
    """Highest measured CPU load of a host; None if it is not measured."""
    speed: float = 1.0
    """Speed of a burst worker relative to a host."""
    speed_measured: bool = False
    """Whether `speed` comes from the same requests on both. If not, it is the setting."""

    @property
    def carries(self) -> bool:
        """Whether any rows go to burst workers."""
        return bool(self.workers > 0 and self.shares.any())

    @property
    def kept(self) -> Floats:
        """Work left for the host of each slot, relative to processing all of its rows.

        >>> import numpy as np
        >>> Offloading(np.array([0.0, 0.5, 1.0]), 2, 2, merge=0.25).kept.tolist()
        [1.0, 0.625, 0.25]
        """
        kept: Floats = 1.0 - self.shares * (1.0 - self.merge)
        return kept


def for_switch(vitals: Vitals, bounds: Bounds, offloading: Offloading) -> Vitals:
    """The vitals for the policy of hosts while burst workers carry part of the load.

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
        # The latency is good only because of burst workers. Assume the bound as the latency without them.
        bad_ms = max(bounds.whole_ms, _CLEARLY * bounds.alert_ms)
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
    """The decision of a policy, without its treatments while burst workers carry the burst.

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
