"""What a user asks of the control plane: a policy and its limits, and changes of them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from penstock.control.money import Costs, FunctionPrice, HostPrice
from penstock.control.policies.parse import parse
from penstock.control.treat.decision import Bounds, Policy
from penstock.control.treat.offloading import OffloadSettings
from penstock.errors import SettingError
from penstock.model import SLA, milliseconds


class WorkerTerms(Protocol):
    """What control must know of the burst workers that a user offers."""

    @property
    def at_most(self) -> int:
        """Burst workers at a time."""
        ...

    @property
    def price(self) -> FunctionPrice: ...

    @property
    def speed(self) -> float:
        """Speed of a burst worker relative to a host."""
        ...

    @property
    def start_ms(self) -> int:
        """Duration of a cold start. The policy does not count on burst workers that still start."""
        ...


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
    functions: WorkerTerms | None = None
    """Where burst workers run that take up bursts. None: hosts alone do the work."""
    functions_at_most: int | None = None
    """Burst workers at a time, for a step. None: as many as there may be; 0: none for now."""
    patience: str | float = "2 minutes"
    """A burst that burst workers carry for longer is one that lasts: then hosts are added."""
    merge_cost: float = 1.0
    """What it costs a host to merge what burst workers made of some rows, in rows."""
    warm_for: float = 5.0
    """Burst workers are kept ready for so many times the stable load; 0: none are."""
    host_price: HostPrice = field(default_factory=HostPrice)
    """What a core of a host costs; burst workers bring their own price."""

    def __post_init__(self) -> None:
        parse(self.policy)
        if milliseconds(self.delta) < 1:
            raise SettingError(
                f"delta is {self.delta!r}, less than a millisecond", hint='use for example "100ms"'
            )
        if self.alert is not None:
            milliseconds(self.alert)
        if self.functions_at_most is not None and self.functions is None:
            raise SettingError(
                f"functions_at_most is {self.functions_at_most}, but the flow has no functions",
                hint="add elastic(functions=ps.LocalFunctions()), or leave functions_at_most out",
            )
        for name in ("merge_cost", "warm_for"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} is {getattr(self, name):g}", hint="use 0 or more")
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
        """When burst workers help a step; without burst workers they never do."""
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


@dataclass(frozen=True)
class Steering:
    """What a user changes in a running query. None: it stays as it is.

    >>> Steering(latency="2s", at_most=12).to_json()
    {'latency_ms': 2000, 'at_most': 12}
    >>> Steering.from_json({"patience_ms": 1500, "dry_run": False})
    Steering(dry_run=False, patience=1.5)
    """

    latency: str | float | None = None
    """The SLA's bound. Durations are text with a unit, or seconds."""
    window: str | float | None = None
    """The SLA's window."""
    policy: str | Policy | None = None
    at_least: int | None = None
    at_most: int | None = None
    margin: float | None = None
    alert: str | float | None = None
    dry_run: bool | None = None
    functions_at_most: int | None = None
    patience: str | float | None = None

    @staticmethod
    def of(**changes: Any) -> Steering:
        """These changes, by name."""
        names = [f.name for f in fields(Steering)]
        if unknown := sorted(changes.keys() - set(names)):
            raise SettingError(
                f"a running query cannot change {', '.join(unknown)}",
                hint=f"it can change {', '.join(names)}",
            )
        return Steering(**changes)

    @property
    def changes(self) -> dict[str, Any]:
        """What is not None, by name."""
        return {f.name: new for f in fields(self) if (new := getattr(self, f.name)) is not None}

    def __repr__(self) -> str:
        return f"Steering({', '.join(f'{name}={new!r}' for name, new in self.changes.items())})"

    def to_json(self) -> dict[str, Any]:
        """As it goes from one process to another: durations in milliseconds."""
        return {
            f"{name}_ms" if name in _DURATIONS else name: milliseconds(new)
            if name in _DURATIONS
            else new
            for name, new in self.changes.items()
        }

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Steering:
        """Undo `to_json`; keys that are not known are ignored."""
        known = {f.name: facts.get(f.name) for f in fields(Steering) if f.name not in _DURATIONS}
        in_ms = {name: facts.get(f"{name}_ms") for name in _DURATIONS}
        return Steering(
            **known, **{n: None if ms is None else ms / 1000 for n, ms in in_ms.items()}
        )

    def applied(self, elastic: Elastic, sla: SLA) -> tuple[Elastic, SLA]:
        """What holds with these changes; raises if that cannot be."""
        changes = self.changes
        bound = {
            f"{name}_ms": milliseconds(changes.pop(name))
            for name in ("latency", "window")
            if name in changes
        }
        then, sla = replace(elastic, **changes), replace(sla, **bound)
        then.bounds(sla)
        return then, sla

    def told(self, elastic: Elastic, sla: SLA) -> dict[str, Any]:
        """What holds, of all that can be changed, as the journal names it."""
        names = (f.name for f in fields(self) if f.name not in ("latency", "window", "policy"))
        settings = {name: getattr(elastic, name) for name in names}
        return {"sla": str(sla), "policy": elastic.policy_text, **settings}


_DURATIONS = ("latency", "window", "alert", "patience")
