"""What a user asks of the control plane: a policy and its limits."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.control.money import Costs, HostPrice
from penstock.control.policies.parse import parse
from penstock.control.treat.decision import Bounds, Policy
from penstock.errors import SettingError
from penstock.model import SLA, milliseconds
from penstock.offload.backends.backend import Backend
from penstock.offload.policy.values import OffloadSettings


@dataclass(frozen=True)
class Elastic:
    """How the hosts of a flow's steps follow the load. `Flow.elastic` makes it.

    >>> elastic = Elastic(policy="switch(0.3)", at_most=8)
    >>> elastic.bounds(SLA(1000, 1000)).margin
    0.3
    """

    policy: str | Policy = "switch"
    at_least: int = 1
    """Hosts that a step has at least."""
    at_most: int = 8
    """Hosts that a step has at most."""
    margin: float | None = None
    """The share of a host's service rate that is not counted on. None: what the policy says, or 0.2."""
    alert: str | float | None = None
    """A latency above it is a sign of trouble: text with a unit, or seconds. None: half the bound."""
    delta: str | float = "100ms"
    """Length of the time slots that arrivals and completions are counted in."""
    dry_run: bool = False
    """Only tell what would be done."""
    functions: Backend | None = None
    """Where functions run that take up bursts. None: hosts alone do the work."""
    functions_at_most: int | None = None
    """Functions at a time, for a step. None: as many as there may be; 0: none for now."""
    patience: str | float = "2 minutes"
    """A burst that functions carry for longer is one that lasts: then hosts are added."""
    merge_cost: float = 1.0
    """What it costs a host to merge what functions made of some rows, in rows."""
    warm_for: float = 5.0
    """Functions are kept ready for so many times the stable load; 0: none are."""
    host_price: HostPrice = field(default_factory=HostPrice)
    """What a core of a host costs; functions bring their own price."""

    def __post_init__(self) -> None:
        parse(self.policy)
        if milliseconds(self.delta) < 1:
            raise SettingError(f"a delta of {self.delta!r}", hint="use some milliseconds, as 100ms")
        if self.alert is not None:
            milliseconds(self.alert)
        if self.functions_at_most is not None and self.functions is None:
            raise SettingError(
                "this flow has no functions that could be limited",
                hint="give it some: elastic(functions=ps.LocalFunctions())",
            )
        if self.merge_cost < 0 or self.warm_for < 0:
            raise SettingError(
                f"a merge cost of {self.merge_cost:g}, kept warm for {self.warm_for:g} times the load",
                hint="use 0 or more",
            )
        self.offload_settings()  # raises if they cannot be

    def bounds(self, sla: SLA, share: float = 1.0) -> Bounds:
        """What each step must keep to."""
        margin = self.margin if self.margin is not None else parse(self.policy)[1]
        return Bounds(
            sla,
            alert=None if self.alert is None else float(milliseconds(self.alert)),
            margin=0.2 if margin is None else margin,
            at_least=self.at_least,
            at_most=self.at_most,
            share=share,
        )

    def offload_settings(self, deadline_ms: float | None = None) -> OffloadSettings:
        """When functions help a step; without functions they never do."""
        if self.functions is None:
            return OffloadSettings(at_most=0)
        limit = self.functions.at_most
        if self.functions_at_most is not None:
            limit = min(limit, self.functions_at_most)
        return OffloadSettings(
            at_most=limit,
            speed=self.functions.speed,
            start_ms=float(self.functions.start_ms),
            deadline_ms=deadline_ms,
            merge_cost=self.merge_cost,
            patience_ms=float(milliseconds(self.patience)),
            warm_for=self.warm_for,
            costs=Costs(self.host_price, self.functions.price),
        )

    def make_policy(self) -> Policy:
        """A policy object for one step, of its own."""
        return deepcopy(parse(self.policy)[0])

    @property
    def policy_text(self) -> str:
        """
        >>> Elastic().policy_text
        'switch'
        """
        return self.policy if isinstance(self.policy, str) else type(self.policy).__name__

    def changed(self, **changes: Any) -> Elastic:
        """With other settings; those that are None stay."""
        return replace(self, **{name: new for name, new in changes.items() if new is not None})
