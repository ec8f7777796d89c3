"""A query in one second, as values: what the dashboard, the report and the metrics show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np

from penstock.control.examine.fifo import resized
from penstock.control.money import Money
from penstock.driver.progress import EpochProgress, Latency, merged_latency
from penstock.host.vitals import MovedState
from penstock.model import SLA
from penstock.observe.bounds import BoundJudge, BoundMoment, judged, reached
from penstock.plan.epoch import RouteTable
from penstock.plan.placement import Handover
from penstock.spans import Span


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
    spans: tuple[Span, ...] = ()
    """What processes did in it, and in the epoch before after that was reported. Only for watchers of a
    running query: recordings do without."""

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
    """Windows that ended of the SLA's first bound on the whole flow."""
    kept: int
    """Those of them in which it was kept."""
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
    bounds: tuple[BoundMoment, ...] = ()
    """All bounds of the SLA. Empty in recordings of releases that knew only the first."""

    @property
    def all_bounds(self) -> tuple[BoundMoment, ...]:
        """All bounds of the SLA that the recording knows of."""
        if self.sla is None:
            return ()
        if self.bounds:
            return self.bounds
        first = self.sla.bounds[0]
        return (judged(first, reached(first, self.latency), self.windows, self.kept),)

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
    _judge: BoundJudge = field(default_factory=BoundJudge, init=False)

    def make(self, look: Look, epochs: Sequence[EpochProgress], windows: int, kept: int) -> Moment:
        """The moment that ends with `look`. `windows` and `kept` are those of the SLA's first bound on the
        whole flow. Its other bounds are judged here."""
        seconds = max((look.time_ms - self.begun_ms) / 1000, 1e-3)
        self.begun_ms = look.time_ms
        rows = sum(epoch.rows for epoch in epochs)
        for epoch in epochs:
            self._epoch = epoch.epoch
            for host in epoch.hosts:
                self._newest[host.host] = host.entries, host.state_bytes
        control = look.control
        steps = tuple(self._step(step, look, epochs, seconds) for step in look.steps)
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
            steps=steps,
            moves=_moves(epochs),
            couriers=look.couriers,
            sla=look.sla,
            policy=None if control is None else control["policy"],
            dry_run=bool(control and control["dry_run"]),
            money=look.money,
            late_rows=sum(sum(epoch.late_rows.values()) for epoch in epochs),
            dead_letters=sum(epoch.dead_letters for epoch in epochs),
            offloaded=sum(epoch.functions.rows for epoch in epochs),
            bounds=self._judge.judge(
                look.sla, look.time_ms, epochs, _latencies(steps), (windows, kept)
            ),
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


def _latencies(steps: Sequence[StepMoment]) -> dict[str, float]:
    """Step -> average latency of its hosts in milliseconds, of those steps that had records."""
    found: dict[str, float] = {}
    for step in steps:
        known = [(h.latency_ms, h.rate or 0.0) for h in step.hosts if h.latency_ms is not None]
        weight = sum(rate for _, rate in known)
        if weight and any(step.rates):
            found[step.step] = sum(latency_ms * rate for latency_ms, rate in known) / weight
    return found


def _epoch_moment(epoch: EpochProgress) -> EpochMoment:
    names = (
        *("epoch", "runs", "rows", "started_ms", "read_ms", "sink_ms", "seal_ms", "latency"),
        "spans",
    )
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


def bare(moment: Moment) -> Moment:
    """The moment as it is recorded: without spans."""
    if not any(epoch.spans for epoch in moment.epochs):
        return moment
    return replace(moment, epochs=tuple(replace(epoch, spans=()) for epoch in moment.epochs))


_MOST_EPOCHS = 8
"""Epochs of a joined moment at most."""


def joined(moments: Sequence[Moment]) -> Moment:
    """Moments that followed each other as one long moment, for charts of long runs.

    Sums stay sums. Of backlog and hosts the peak counts, so it does not vanish. Some of the epochs stay, by
    which their average is known. Of the rest, the last moment counts.
    """
    last, peak = moments[-1], max(moments, key=lambda m: m.hosts + m.functions)
    seconds = sum(moment.seconds for moment in moments)
    epochs = [epoch for moment in moments for epoch in moment.epochs]
    rated = [(m.rate, m.seconds) for m in moments if m.rate is not None]
    weight = sum(length for _, length in rated)
    return replace(
        last,
        **{name: sum(getattr(moment, name) for moment in moments) for name in _SUMS},
        seconds=round(seconds, 3),
        rate=round(sum(r * s for r, s in rated) / weight, 1) if weight else None,
        backlog=max(moment.backlog for moment in moments),
        # It reads only `rows` and `latency`, which a moment has too.
        latency=merged_latency(cast("Sequence[EpochProgress]", moments)),
        epochs=tuple(epochs[:: -(-len(epochs) // _MOST_EPOCHS)] if epochs else ()),
        steps=peak.steps,
        moves=_joined_moves(moments),
        bounds=tuple(_joined_bound(bound, moments) for bound in last.bounds),
    )


_SUMS = ("rows", "windows", "kept", "late_rows", "dead_letters", "offloaded")
"""Fields of `Moment` that add up."""


def _joined_moves(moments: Sequence[Moment]) -> MovesMoment:
    """All moves, those between the same hosts as one. Of what is left behind, the newest counts."""
    slots: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for handover in (h for moment in moments for h in moment.moves.handovers):
        whose = handover.step, handover.source, handover.target, handover.why
        slots[whose] = (*slots.get(whose, ()), *handover.slots)
    sums = {c.name: sum(getattr(m.moves, c.name) for m in moments) for c in fields(MovedState)}
    newest = moments[-1].moves
    sums |= {"partial_slots": newest.partial_slots, "left_behind": newest.left_behind}
    handovers = tuple(
        Handover(step, moved, source, target, why)
        for (step, source, target, why), moved in slots.items()
    )
    return MovesMoment(handovers=handovers, **sums)


def _joined_bound(bound: BoundMoment, moments: Sequence[Moment]) -> BoundMoment:
    """A bound over several moments: all its windows, and its highest figure."""
    whose = bound.kind, bound.step
    same = [b for m in moments for b in m.bounds if (b.kind, b.step) == whose]
    known = [b.reached_ms for b in same if b.reached_ms is not None]
    return replace(
        bound,
        windows=sum(b.windows for b in same),
        kept=sum(b.kept for b in same),
        reached_ms=max(known, default=None),
    )
