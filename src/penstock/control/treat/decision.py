"""Values of policies: the `Bounds` they receive besides vitals, and the `Decision` they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from penstock import codec
from penstock.control.examine.vitals import Vitals
from penstock.errors import SettingError
from penstock.model import SLA, HostId, LatencyBound
from penstock.plan.slots import slots_to_text

Health = Literal["good", "moderate", "severe"]
Kind = Literal["scale_out", "scale_in", "balance"]

_NEW = "new/"
_NO_BOUND_MS = 1e13
"""Latency bound of a step that no bound of the SLA applies to: 317 years, in milliseconds."""


def new_host(number: int) -> HostId:
    """Placeholder name of the first, second ... host that a decision wants started.

    >>> new_host(1), is_new(new_host(1)), is_new(HostId("sum/1"))
    ('new/1', True, False)
    """
    return HostId(f"{_NEW}{number}")


def is_new(host: HostId) -> bool:
    return host.startswith(_NEW)


@dataclass(frozen=True)
class Bounds:
    """Limits of a step: latency, margin and number of hosts. All can change while a query runs.

    >>> bounds = Bounds(SLA(1000, 1000))
    >>> bounds.alert_ms, bounds.margin
    (500.0, 0.2)
    >>> Bounds(SLA(1000, 1000, p99=True), tail=4.0).latency_ms
    250.0
    """

    sla: SLA
    alert: float | None = None
    """Latency in milliseconds above which a host may need help (the paper's l). None: half the bound."""
    margin: float = 0.2
    """Safety margin (epsilon): the share of every host's service rate to keep in reserve."""
    at_least: int = 1
    """Minimum number of hosts."""
    at_most: int = 32
    """Maximum number of hosts."""
    share: float = 1.0
    """The step's share of an end-to-end latency bound, above 0 and up to 1."""
    left: float | None = None
    """Share of an epoch's time that other steps leave to this step's hosts; None if unknown."""
    step: str | None = None
    """Name of the step, whose own bounds in the SLA count too; None: only those of the whole flow do."""
    tail: float = 2.0
    """The 99th percentile of the rows' latencies, as a multiple of their average. By it, a bound on the
    percentile becomes one on the average, which decisions are made on."""

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise SettingError(
                f"margin is {self.margin:g}", hint="use 0 or more, but less than 1, such as 0.2"
            )
        if not 1 <= self.at_least <= self.at_most:
            raise SettingError(
                f"at_least is {self.at_least} and at_most is {self.at_most} hosts",
                hint="use an at_least of 1 or more, and an at_most that is not lower",
            )

    @property
    def time(self) -> float:
        """Share of an epoch's time in which the step's hosts can work."""
        return self.share if self.left is None else self.left

    @cached_property
    def whole_ms(self) -> float:
        """Bound on the average latency of the whole flow in milliseconds: the tightest of the SLA's bounds.
        One on the step alone counts as if the others' shares followed from it."""
        return min(
            (
                bound.latency_ms
                / (self.tail if bound.p99 else 1.0)
                / (1.0 if bound.step is None else self.share)
                for bound in self.sla.bounds
                if bound.step in (None, self.step)
            ),
            default=_NO_BOUND_MS,
        )

    @property
    def latency_ms(self) -> float:
        """Bound on the step's own average latency in milliseconds (the paper's L)."""
        return self.whole_ms * self.share

    @property
    def window_ms(self) -> int:
        """The shortest window of the step's own bounds and the flow's, in milliseconds. Decisions are made on
        one average: if that is within the tightest bound in each short window, longer ones are kept too."""
        windows = (b.window_ms for b in self.sla.bounds if b.step in (None, self.step))
        return min(windows, default=self.sla.window_ms)

    def judged(self, own_latency: bool) -> dict[bool, LatencyBound]:
        """Whether a bound is on the 99th percentile -> the one that the step's slots are judged by: its own,
        else the flow's. With `own_latency`, latencies are the step's alone, so that of the flow's bound only
        the step's share counts.

        >>> sla = SLA(1000, 2000, more=(LatencyBound(300, 1000, p99=True, step="clicks"),))
        >>> for bound in Bounds(sla, share=0.5, step="clicks").judged(own_latency=True).values():
        ...     print(bound)
        average latency <= 500 ms over any 2000 ms
        step clicks: p99 latency <= 300 ms over any 1000 ms
        """
        share, found = self.share if own_latency else 1.0, dict[bool, LatencyBound]()
        for bound in self.sla.bounds:
            if bound.step is None:
                part_ms = max(1, round(bound.latency_ms * share))
                found[bound.p99] = LatencyBound(part_ms, bound.window_ms, bound.p99)
            elif bound.step == self.step:
                found[bound.p99] = bound  # bounds of the flow come first
        return found

    @property
    def alert_ms(self) -> float:
        """The step's share of `alert`, in milliseconds."""
        whole = self.whole_ms / 2 if self.alert is None else self.alert
        return whole * self.share


@dataclass(frozen=True)
class Treatment:
    """A move of slots from one host to another: the paper's unit strategy.

    >>> str(Treatment("scale_out", (0, 1, 5), HostId("sum/0"), new_host(1), "sum/0 is severe"))
    'scale out: slots 0-1,5 from sum/0 to new/1'
    """

    kind: Kind
    slots: tuple[int, ...]
    source: HostId
    target: HostId
    reason: str

    def __str__(self) -> str:
        words = self.kind.replace("_", " ")
        return f"{words}: slots {slots_to_text(self.slots)} from {self.source} to {self.target}"

    def facts(self) -> dict[str, Any]:
        """JSON values for the journal, with the slots as text such as 0-3,7."""
        return {**codec.to_plain(self), "slots": slots_to_text(self.slots)}


class HostHealth(NamedTuple):
    """Health of one host in a decision, with the figures behind it.

    It is a tuple because a decision about a thousand hosts creates a thousand of them.
    """

    host: HostId
    health: Health
    slots: int
    rate: float
    """Arrivals in records per second."""
    service_rate: float
    """Capacity of the host in records per second."""
    latency_ms: float
    projected_ms: float
    """Latency that the host would settle at if nothing changed; inf if it cannot keep up."""


@dataclass(frozen=True)
class Decision:
    """A policy's decision: the health of the hosts, the treatments, and the reasons."""

    health: Health
    hosts: tuple[HostHealth, ...]
    treatments: tuple[Treatment, ...] = ()
    """Moves to carry out together, in this order."""
    reasons: tuple[str, ...] = ()
    """Sentences that explain the decision."""
    hot_slots: tuple[int, ...] = ()
    """Slots with more records than any host can process. Moving them does not help."""


class Policy(Protocol):
    """Decides how to scale one step. Each step has its own policy object, which may keep state."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        """Decide for a step. Called when `vitals` are valid and no treatment is under way."""
        ...


def after(vitals: Vitals, treatments: Sequence[Treatment]) -> Vitals:
    """The vitals as they would be after these treatments: with other owners and other hosts.

    A new host is assumed to be as fast as the host that its slots come from.

    >>> from penstock.model import StepId
    >>> vitals = Vitals.even(StepId("sum"), [4.0, 3.0, 2.0, 1.0], hosts=1, service_rate=8.0)
    >>> out = Treatment("scale_out", (2, 3), HostId("sum/0"), new_host(1), "")
    >>> then = after(vitals, [out])
    >>> then.hosts, then.host_rate.tolist(), then.service_rate.tolist()
    (('sum/0', 'new/1'), [7.0, 3.0], [8.0, 8.0])
    """
    for treatment in treatments:
        hosts, owner = vitals.hosts, vitals.owner.copy()
        source = hosts.index(treatment.source)
        per_host = {
            name: getattr(vitals, name) for name in ("latency_ms", "measured_ms", "service_rate")
        }
        if treatment.target not in hosts:
            hosts = (*hosts, treatment.target)
            per_host = {name: np.append(v, v[source]) for name, v in per_host.items()}
        owner[list(treatment.slots)] = hosts.index(treatment.target)
        if treatment.kind == "scale_in":
            hosts = tuple(host for host in hosts if host != treatment.source)
            owner = owner - (owner > source)
            per_host = {name: np.delete(v, source) for name, v in per_host.items()}
        vitals = replace(vitals, hosts=hosts, owner=owner, **per_host)
    return vitals
