"""A query in one second, as values: what the dashboard, the report and the metrics show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from penstock.control.examine.fifo import resized
from penstock.control.money import Money
from penstock.driver.progress import EpochProgress, Latency, merged_latency
from penstock.host.vitals import MovedState
from penstock.model import SLA
from penstock.plan.epoch import RouteTable
from penstock.plan.placement import Handover


@dataclass(frozen=True)
class HostMoment:
    """One host of a step. None means that a figure is not known, or infinite."""

    host: str
    up: bool
    """Whether its process runs."""
    slots: int
    health: str | None = None
    """"good", "moderate" or "severe", from the last decision."""
    rate: float | None = None
    """Arrivals in records per second."""
    service_rate: float | None = None
    """Records per second that it can process."""
    latency_ms: float | None = None
    projected_ms: float | None = None
    """Latency at which it would settle if nothing changed; None also if it cannot keep up."""
    entries: int = 0
    """Entries of its state."""
    state_bytes: int = 0
    rows: int = 0
    """Records that it processed in the moment."""
    useful_ms: float = 0.0
    """Milliseconds that it worked on them."""


@dataclass(frozen=True)
class StepMoment:
    """One keyed step."""

    step: str
    hosts: tuple[HostMoment, ...]
    owner: tuple[int, ...]
    """Index into `hosts` of each slot's owner."""
    rates: tuple[int, ...]
    """Records per second of each slot."""
    pending: int = 0
    """Slots that have not reached the host where they should be."""
    health: str | None = None
    treating: str | None = None
    """Treatment under way; None if there is none."""
    at_least: int | None = None
    at_most: int | None = None
    margin: float | None = None
    alert_ms: float | None = None
    share: float = 1.0
    """Share of the SLA's bound that the step has."""
    hot_keys: tuple[dict[str, Any], ...] = ()
    """Keys that are too much for one host: key, slot, rate, text."""
    functions: int = 0
    """Burst workers that carry a part of the load."""
    redirected: float = 0.0
    """Records per second that they carry."""


@dataclass(frozen=True)
class EpochMoment:
    """One epoch that ended in the moment, and where its time went. All times are in milliseconds."""

    epoch: int
    runs: int
    rows: int
    started_ms: int
    """Start, since 1970."""
    read_ms: float
    """From the start until all couriers had read their rows and sent them to hosts."""
    sink_ms: float
    """From the start until the output was in the sink."""
    seal_ms: float
    """From then until the epoch was durable."""
    latency: Latency | None

    def phases(self) -> dict[str, float]:
        """Milliseconds of each phase, one after the other: read (source and couriers; not in a live flow,
        which reads all the time), process (hosts and sink), seal."""
        read = {"read": min(self.read_ms, self.sink_ms)} if self.read_ms else {}
        process_ms = self.sink_ms - read.get("read", 0.0)
        return {**read, "process": process_ms, "seal": self.seal_ms}


@dataclass(frozen=True, kw_only=True)
class MovesMoment(MovedState):
    """Slots that moved in the moment, and the cost of moves over all hosts."""

    handovers: tuple[Handover, ...] = ()


@dataclass(frozen=True)
class Moment:
    """A query in one second."""

    time_ms: float
    """End of the moment, in milliseconds since 1970."""
    seconds: float
    """Length of the moment."""
    state: str
    """"starting", "running", "stopped", "finished" or "failed"."""
    message: str
    """The state in words, and what the query waits for."""
    epoch: int | None
    """Newest finished epoch; None before the first."""
    rows: int
    """Rows whose output reached the sink."""
    rate: float | None
    """Input in rows per second, over the epochs that ended; None if none did."""
    backlog: int
    """Rows that were read, or are known to wait in the source, and whose output is not in the sink."""
    latency: Latency | None
    """Latency of the rows; None if there were none."""
    windows: int
    """Windows of the SLA that ended."""
    kept: int
    """Those of them in which the SLA was kept."""
    epochs: tuple[EpochMoment, ...] = ()
    steps: tuple[StepMoment, ...] = ()
    moves: MovesMoment = MovesMoment()
    couriers: int = 0
    """Long-lived couriers of a live flow that are up."""
    sla: SLA | None = None
    policy: str | None = None
    """The policy that scales hosts; None if autoscaling is off."""
    dry_run: bool = False
    """Whether the controller is paused: it records decisions and does not carry them out."""
    money: Money | None = None
    """Cost since the start."""
    late_rows: int = 0
    dead_letters: int = 0
    offloaded: int = 0
    """Rows that burst workers processed."""

    @property
    def hosts(self) -> int:
        """Hosts of all steps that are up."""
        return sum(host.up for step in self.steps for host in step.hosts)

    @property
    def functions(self) -> int:
        """Burst workers that carry a part of the load, over all steps."""
        return sum(step.functions for step in self.steps)


@dataclass(frozen=True)
class StepLook:
    """One keyed step at the end of a moment: its route table and all its hosts."""

    step: str
    routes: RouteTable
    hosts: Sequence[str]
    pending: int
    rates: Sequence[float] | None
    """Records per second of each slot as control sees them; None without control."""


@dataclass(frozen=True)
class Look:
    """A query at the end of a moment, as its driver sees it."""

    time_ms: float
    state: str
    message: str
    backlog: int
    hosts_up: Mapping[str, int]
    """Host -> process id."""
    steps: Sequence[StepLook]
    couriers: int
    sla: SLA | None
    control: Mapping[str, Any] | None
    """The result of `control_facts`; None if autoscaling is off."""
    money: Money | None


@dataclass
class MomentMaker:
    """Makes moments from looks at a query and the epochs that ended in between. Pure; keeps what one moment
    needs of the one before."""

    begun_ms: float
    _done_ms: float = field(default=0.0, init=False)
    """When the newest epoch reached the sink."""
    _epoch: int | None = field(default=None, init=False)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """Host -> entries and bytes of its state, when it last sealed."""

    def make(self, look: Look, epochs: Sequence[EpochProgress], windows: int, kept: int) -> Moment:
        """The moment that ends with `look`. `windows` and `kept` are counts of the SLA's windows."""
        seconds = max((look.time_ms - self.begun_ms) / 1000, 1e-3)
        self.begun_ms = look.time_ms
        rows = sum(epoch.rows for epoch in epochs)
        for epoch in epochs:
            self._epoch = epoch.epoch
            for host in epoch.hosts:
                self._newest[host.host] = host.entries, host.state_bytes
        control = look.control
        return Moment(
            time_ms=look.time_ms,
            seconds=round(seconds, 3),
            state=look.state,
            message=look.message,
            epoch=self._epoch,
            rows=rows,
            rate=self._rate(rows, epochs),
            backlog=look.backlog,
            latency=merged_latency(epochs),
            windows=windows,
            kept=kept,
            epochs=tuple(_epoch_moment(epoch) for epoch in epochs),
            steps=tuple(self._step(step, look, epochs, seconds) for step in look.steps),
            moves=_moves(epochs),
            couriers=look.couriers,
            sla=look.sla,
            policy=None if control is None else control["policy"],
            dry_run=bool(control and control["dry_run"]),
            money=look.money,
            late_rows=sum(sum(epoch.late_rows.values()) for epoch in epochs),
            dead_letters=sum(epoch.dead_letters for epoch in epochs),
            offloaded=sum(epoch.functions.rows for epoch in epochs),
        )

    def _rate(self, rows: int, epochs: Sequence[EpochProgress]) -> float | None:
        """Rows per second since the last epoch before these reached the sink."""
        if not epochs:
            return None
        before_ms = self._done_ms or float(epochs[0].started_ms)
        self._done_ms = max(epoch.done_ms for epoch in epochs)
        return round(rows * 1000 / max(self._done_ms - before_ms, 1.0), 1)

    def _step(
        self, look: StepLook, query: Look, epochs: Sequence[EpochProgress], seconds: float
    ) -> StepMoment:
        facts = {} if query.control is None else query.control["steps"].get(look.step, {})
        figures = {host["host"]: host for host in facts.get("hosts", ())}
        owners = look.routes.owner.tolist()
        names = [*look.routes.hosts, *(h for h in look.hosts if h not in look.routes.hosts)]
        hosts = []
        for number, host in enumerate(names):
            known, work = (
                figures.get(host, {}),
                [h for e in epochs for h in e.hosts if h.host == host],
            )
            entries, size = self._newest.get(host, (0, 0))
            hosts.append(
                HostMoment(
                    host=host,
                    up=host in query.hosts_up,
                    slots=owners.count(number),
                    **{n: known.get(n) for n in _FIGURES},
                    entries=entries,
                    state_bytes=size,
                    rows=sum(h.rows for h in work),
                    useful_ms=round(sum(h.useful_ms for h in work), 1),
                )
            )
        # Slots may have been split, or put together, since they were counted.
        if look.rates is None:
            loads = [epoch.loads[look.step] for epoch in epochs if look.step in epoch.loads]
            sums = sum((resized(load, len(owners)) for load in loads), np.zeros(len(owners)))
            rates = (sums / seconds).tolist()
        else:
            rates = resized(np.array(look.rates), len(owners)).tolist()
        offload = facts.get("offload") or {}
        return StepMoment(
            step=look.step,
            hosts=tuple(hosts),
            owner=tuple(owners),
            rates=tuple(round(rate) for rate in rates),
            pending=look.pending,
            **{name: facts.get(name) for name in _LIMITS},
            share=facts.get("share", 1.0),
            hot_keys=tuple(facts.get("hot_keys", ())),
            functions=offload.get("functions", 0),
            redirected=offload.get("redirected") or 0.0,
        )


_FIGURES = ("health", "rate", "service_rate", "latency_ms", "projected_ms")
"""Fields of `HostMoment` that a decision has."""
_LIMITS = ("health", "treating", "at_least", "at_most", "margin", "alert_ms")
"""Fields of `StepMoment` that control has."""


def _epoch_moment(epoch: EpochProgress) -> EpochMoment:
    names = ("epoch", "runs", "rows", "started_ms", "read_ms", "sink_ms", "seal_ms", "latency")
    return EpochMoment(**{name: getattr(epoch, name) for name in names})


def _moves(epochs: Sequence[EpochProgress]) -> MovesMoment:
    """Moves of all epochs. Of figures that describe what is, not what happened, the newest counts."""
    handovers = tuple(handover for epoch in epochs for handover in epoch.migration.handovers)
    sums = {
        cost.name: sum(getattr(epoch.migration, cost.name) for epoch in epochs)
        for cost in fields(MovedState)
    }
    if epochs:
        newest = epochs[-1].migration
        sums |= {"partial_slots": newest.partial_slots, "left_behind": newest.left_behind}
    return MovesMoment(handovers=handovers, **sums)
