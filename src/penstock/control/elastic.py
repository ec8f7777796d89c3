"""Autoscaling settings of a flow: a policy and its limits, and changes to them while the query runs."""

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
from penstock.model import SLA, LatencyBound, milliseconds


class WorkerTerms(Protocol):
    """The terms of burst workers that control needs to know."""

    @property
    def at_most(self) -> int:
        """Maximum number of burst workers that run at the same time."""
        ...

    @property
    def price(self) -> FunctionPrice: ...

    @property
    def speed(self) -> float:
        """Speed of a burst worker relative to a host."""
        ...

    @property
    def start_ms(self) -> int:
        """Milliseconds of a cold start. The policy does not count on burst workers that still start."""
        ...


@dataclass(frozen=True)
class Elastic:
    """Settings for scaling a flow's hosts with the load. `Flow.elastic` creates it.

    >>> elastic = Elastic(policy="switch(0.3)", at_most=8)
    >>> elastic.bounds(SLA(1000, 1000)).margin
    0.3
    """

    policy: str | Policy = "switch"
    """Scaling policy: text such as "switch(0.3)", or a policy object."""
    at_least: int = 1
    """Minimum number of hosts per step."""
    at_most: int = 8
    """Maximum number of hosts per step."""
    margin: float | None = None
    """Share of a host's service rate to keep in reserve. None: the policy's own, or 0.2."""
    alert: str | float | None = None
    """Latency above which a host may need help: text with a unit, or seconds. None: half the bound."""
    delta: str | float = "100ms"
    """Length of the time slots in which arrivals and completions are counted: text, or seconds."""
    dry_run: bool = False
    """Whether decisions are only journalled and not carried out."""
    functions: WorkerTerms | None = None
    """Burst workers that carry bursts. None: hosts do all the work."""
    functions_at_most: int | None = None
    """Maximum number of burst workers per step. None: the limit of `functions`. 0: none for now."""
    patience: str | float = "2 minutes"
    """Time that burst workers carry a burst before hosts are added for it: text, or seconds."""
    merge_cost: float = 1.0
    """Cost for a host to merge one partial state from a burst worker, in rows."""
    warm_for: float = 5.0
    """Multiple of the stable load that warm burst workers can carry. 0: none are kept warm."""
    host_price: HostPrice = field(default_factory=HostPrice)
    """Price of a host's core. The price of burst workers is part of `functions`."""

    def __post_init__(self) -> None:
        parse(self.policy)
        if milliseconds(self.delta) < 1:
            raise SettingError(
                f"delta is {self.delta!r}, less than 1 ms",
                hint="use some milliseconds, such as '100ms'",
            )
        if self.alert is not None:
            milliseconds(self.alert)
        if self.functions_at_most is not None and self.functions is None:
            raise SettingError(
                "functions_at_most is set, but the flow has no functions",
                hint="add some: elastic(functions=ps.LocalFunctions())",
            )
        for name, value in (("merge_cost", self.merge_cost), ("warm_for", self.warm_for)):
            if value < 0:
                raise SettingError(f"{name} is {value:g}", hint="use 0 or more")
        self.offload_settings()  # raises if they are invalid

    def bounds(self, sla: SLA, share: float = 1.0) -> Bounds:
        """The limits of each step."""
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
        """Settings for the policy of burst workers. Without `functions` they allow 0 burst workers."""
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
        """A new policy object for one step."""
        return deepcopy(parse(self.policy)[0])

    @property
    def policy_text(self) -> str:
        """The policy as text: a policy object by the name of its class.

        >>> Elastic().policy_text
        'switch'
        """
        return self.policy if isinstance(self.policy, str) else type(self.policy).__name__


@dataclass(frozen=True)
class Steering:
    """Changes to the settings of a running query. None: no change.

    >>> Steering(latency="2s", at_most=12).to_json()
    {'latency_ms': 2000, 'at_most': 12}
    >>> print(Steering(p99="300ms", step="clicks").applied(Elastic(), SLA(1000, 1000))[1])
    average latency <= 1000 ms over any 1000 ms; step clicks: p99 latency <= 300 ms over any 1000 ms
    >>> Steering.from_json({"patience_ms": 1500, "dry_run": False})
    Steering(dry_run=False, patience=1.5)
    """

    latency: str | float | None = None
    """Bound on the average latency. All durations are text with a unit, or seconds. A bound that the SLA does
    not have yet is added; none can be taken away."""
    window: str | float | None = None
    """Window of the bounds that are changed or, if none is, of all bounds of the flow, or of `step`."""
    policy: str | Policy | None = None
    at_least: int | None = None
    at_most: int | None = None
    margin: float | None = None
    alert: str | float | None = None
    dry_run: bool | None = None
    functions_at_most: int | None = None
    patience: str | float | None = None
    p99: str | float | None = None
    """Bound on the 99th percentile of latencies."""
    step: str | None = None
    """Keyed step whose bounds are changed. None: those of the whole flow."""

    @staticmethod
    def of(**changes: Any) -> Steering:
        """Changes from keyword arguments. Raises an error for unknown names."""
        names = [f.name for f in fields(Steering)]
        if unknown := sorted(changes.keys() - set(names)):
            raise SettingError(
                f"cannot change {', '.join(unknown)} of a running query",
                hint=f"settings that can change: {', '.join(names)}",
            )
        return Steering(**changes)

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are not None, by name."""
        return {f.name: new for f in fields(self) if (new := getattr(self, f.name)) is not None}

    def __repr__(self) -> str:
        return f"Steering({', '.join(f'{name}={new!r}' for name, new in self.changes.items())})"

    def to_json(self) -> dict[str, Any]:
        """The changes as JSON values, with durations in milliseconds."""
        return {
            f"{name}_ms" if name in _DURATIONS else name: milliseconds(new)
            if name in _DURATIONS
            else new
            for name, new in self.changes.items()
        }

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Steering:
        """The inverse of `to_json`. Ignores unknown keys."""
        known = {f.name: facts.get(f.name) for f in fields(Steering) if f.name not in _DURATIONS}
        in_ms = {name: facts.get(f"{name}_ms") for name in _DURATIONS}
        return Steering(
            **known, **{n: None if ms is None else ms / 1000 for n, ms in in_ms.items()}
        )

    def applied(self, elastic: Elastic, sla: SLA) -> tuple[Elastic, SLA]:
        """The settings and the SLA after these changes. Raises an error if they are invalid."""
        changes = {name: new for name, new in self.changes.items() if name not in _OF_SLA}
        then, sla = replace(elastic, **changes), self._bounded(sla)
        then.bounds(sla)
        return then, sla

    def _bounded(self, sla: SLA) -> SLA:
        """The SLA after these changes."""
        before = {bound.p99: bound for bound in sla.bounds if bound.step == self.step}
        wanted = {
            p99: milliseconds(most)
            for p99, most in ((False, self.latency), (True, self.p99))
            if most is not None
        }
        if not wanted and self.window is not None:
            wanted = {p99: bound.latency_ms for p99, bound in before.items()}
            if not wanted:
                whose = "the whole flow" if self.step is None else f"step {self.step}"
                raise SettingError(
                    f"the SLA has no bound on {whose}, so there is no window to change",
                    hint="give latency or p99 as well",
                )
        if not wanted and self.step is not None:
            raise SettingError(
                f"nothing is changed of step {self.step}",
                hint="give latency, p99 or window as well",
            )
        for p99, most_ms in wanted.items():
            window_ms = before.get(p99, sla).window_ms
            if self.window is not None:
                window_ms = milliseconds(self.window)
            sla = sla.with_bound(LatencyBound(most_ms, window_ms, p99, self.step))
        return sla

    def current(self, elastic: Elastic, sla: SLA) -> dict[str, Any]:
        """Present values of all settings that can change, by their names in the journal."""
        names = (f.name for f in fields(self) if f.name not in (*_OF_SLA, "policy"))
        settings = {name: getattr(elastic, name) for name in names}
        return {"sla": str(sla), "policy": elastic.policy_text, **settings}


_DURATIONS = ("latency", "window", "p99", "alert", "patience")
_OF_SLA = ("latency", "window", "p99", "step")
