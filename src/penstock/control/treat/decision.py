"""What a policy is given besides vitals, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from penstock import codec
from penstock.control.examine.vitals import Vitals
from penstock.errors import SettingError
from penstock.model import SLA, HostId
from penstock.plan.slots import slots_to_text

Health = Literal["good", "moderate", "severe"]
Kind = Literal["scale_out", "scale_in", "balance"]

_NEW = "new/"


def new_host(number: int) -> HostId:
    """The name of a host that is yet to be started: the first, second ... of a decision.

    >>> new_host(1), is_new(new_host(1)), is_new(HostId("sum/1"))
    ('new/1', True, False)
    """
    return HostId(f"{_NEW}{number}")


def is_new(host: HostId) -> bool:
    return host.startswith(_NEW)


@dataclass(frozen=True)
class Bounds:
    """What a step must keep to. Everything here can be changed while a query runs.

    >>> bounds = Bounds(SLA(1000, 1000))
    >>> bounds.alert_ms, bounds.margin
    (500.0, 0.2)
    """

    sla: SLA
    alert: float | None = None
    """Milliseconds: a latency above it is a sign of trouble (the paper's l). None: half the bound."""
    margin: float = 0.2
    """Safety margin (epsilon): this share of every host's service rate is not counted on."""
    at_least: int = 1
    at_most: int = 32
    """Hosts that the step may have."""
    share: float = 1.0
    """The step's part of an end-to-end bound."""
    left: float | None = None
    """The part of an epoch that other steps leave to its hosts, if that is known."""

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise SettingError(f"margin is {self.margin:g}", hint="use 0 to below 1, such as 0.2")
        if not 1 <= self.at_least <= self.at_most:
            raise SettingError(
                f"at_least is {self.at_least} and at_most is {self.at_most}",
                hint="use 1 or more for at_least, and at_least or more for at_most",
            )

    @property
    def time(self) -> float:
        """The part of an epoch in which the step's hosts can work."""
        return self.share if self.left is None else self.left

    @property
    def latency_ms(self) -> float:
        """The bound on the step's own latency (the paper's L)."""
        return self.sla.latency_ms * self.share

    @property
    def alert_ms(self) -> float:
        whole = self.sla.latency_ms / 2 if self.alert is None else self.alert
        return whole * self.share


@dataclass(frozen=True)
class Treatment:
    """A unit strategy: slots go from one host to one other.

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
        """As the journal has it, with the slots as text such as 0-3,7."""
        return {**codec.to_plain(self), "slots": slots_to_text(self.slots)}


class HostHealth(NamedTuple):
    """One host in a decision, with the figures that it was judged by.

    A tuple, since a decision about a thousand hosts makes a thousand of them.
    """

    host: HostId
    health: Health
    slots: int
    rate: float
    """Records a second that arrive for it."""
    service_rate: float
    latency_ms: float
    projected_ms: float
    """What its latency would settle at if nothing changed; inf if it cannot keep up."""


@dataclass(frozen=True)
class Decision:
    """What a policy found, what it wants done, and why."""

    health: Health
    hosts: tuple[HostHealth, ...]
    treatments: tuple[Treatment, ...] = ()
    """To be done together, in this order."""
    reasons: tuple[str, ...] = ()
    """Sentences that let a reader follow the decision."""
    hot_slots: tuple[int, ...] = ()
    """Slots that bring more than any host can take: no move helps."""


class Policy(Protocol):
    """Decides about one step. Each step has a policy object of its own, which may remember things."""

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        """Called when `vitals` are valid and no treatment of the step is under way."""
        ...


def after(vitals: Vitals, treatments: Sequence[Treatment]) -> Vitals:
    """The vitals as they would be with these treatments done: other owners, hosts come and gone.

    A new host is taken to be as fast as the host that its slots come from.

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
