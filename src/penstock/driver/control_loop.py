"""The control loop of a running flow: sends events to the control machine and carries out its instructions.

`control.machine` makes all decisions. This module adds the clock, the lock, and the thread that examines an
epoch while hosts still work on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.control import events as ev
from penstock.control import instructions as do
from penstock.control.elastic import Elastic, Steering
from penstock.control.examine.arrivals import applied_after, arrivals_of, late_after
from penstock.control.examine.success import Success, Windows
from penstock.control.examine.vitals import Floats, Work
from penstock.control.journal.entry import Entry
from penstock.control.journal.journal import Journal
from penstock.control.machine import WARM_EPOCHS, FlowControl
from penstock.control.money import Money
from penstock.control.record import Opening
from penstock.driver.bill import Bill
from penstock.driver.control_rehearsal import rehearse
from penstock.driver.control_view import control_facts
from penstock.driver.fleet import SealedHost
from penstock.driver.live_counts import StepSample
from penstock.driver.progress import Latency, latency_of, live_latency_of
from penstock.driver.relocation import LeavingHost, LostHost, Relocation
from penstock.errors import PenstockError
from penstock.model import SLA
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.policy.flow import machine_of, opening_of
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.wire.live import Guides, StepGuide
from penstock.wire.report import Seen, offloaded_by_segment

_log = logging.getLogger("penstock.control")

_LEVELS = {
    "done": logging.INFO,
    "outcome": logging.INFO,
    "setting": logging.INFO,
    "hot key": logging.INFO,
    "helped": logging.INFO,
    "workers": logging.INFO,
    "offload": logging.INFO,
    "refused": logging.WARNING,
    "failed": logging.WARNING,
}
"""Levels of the journal's events in the log. Others are DEBUG: another line says the same."""
_FIELDS = ("treatments", "reasons", "expected", "took_ms", "latency_ms", "why", "wanted", "dry_run")
"""Facts of the journal's entries that are fields of log lines."""


class ControlLoop:
    """Controls all keyed steps of a started flow, and the stateless steps that burst workers can help.
    Safe to use from any thread."""

    def __init__(
        self,
        flow: FlowPlan,
        sla: SLA,
        elastic: Elastic,
        relocation: Relocation,
        settings: Settings,
        clock_ms: Callable[[], float],
        *,
        sink: Callable[[Entry], None] = lambda entry: None,
        record: Callable[[Opening | ev.Event], None] = lambda event: None,
        keeper: WorkerKeeper | None = None,
        bill: Bill | None = None,
        together: Callable[[], int | None] = lambda: None,
        unread: Callable[[], int] = lambda: 0,
        cpu: Callable[[str], float | None] = lambda host: None,
        trigger_ms: float = 0.0,
        warm_epochs: int = WARM_EPOCHS,
        live: bool = False,
        decides: bool = True,
    ) -> None:
        """`sink` receives every journal entry, `record` every event of the machine.

        `together` returns the number of couriers that work at the same time, or None if that is unknown.
        `unread` returns the number of rows that wait in the sources after the current epoch. `cpu` returns
        the CPU load of a host, or None if it is not measured. A `live` flow is examined every time slot
        (`time_slot`) instead of every epoch. A loop that `decides` nothing only measures success rates.
        """
        self._flow, self._relocation, self._clock_ms = flow, relocation, clock_ms
        self._keeper, self._bill, self._together = keeper, bill, together
        self._unread, self._cpu = unread, cpu
        self._sink, self._record = sink, record
        self.opening = opening_of(
            flow,
            sla,
            elastic,
            now_ms=clock_ms(),
            host_start_ms=settings.host_start_ms,
            trigger_ms=trigger_ms,
            warm_epochs=warm_epochs,
            live=live,
        )
        self.machine: FlowControl = machine_of(self.opening, elastic, decides)
        record(self.opening)
        self._warm: dict[str, int] = {}
        """Step -> number of burst workers to keep warm for it."""
        self._asked = False
        """Whether the previous epoch used burst workers."""
        self._plan: EpochPlan | None = None
        self._read_epoch = -1
        self._time_slot = -1
        """Number of the last time slot that was examined."""
        self._lock = threading.RLock()
        self._early = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._rehearsed = self._early.submit(rehearse, self.opening, elastic)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Hold the lock, once all kernels are compiled: a status request must not wait for that."""
        wait([self._rehearsed])
        with self._lock:
            yield

    # -- epochs

    def wait_for_hosts(self) -> None:
        """Wait for new hosts before an epoch begins, where that is quicker than to run without them."""
        with self._deciding():
            waits = self._handle(ev.EpochDue(self._clock_ms()))
        for due in waits:
            self._relocation.wait_for_new(due.step, due.most_ms)

    def lost_and_leaving(
        self, lost: Iterable[LostHost], leaving: Iterable[LeavingHost], epoch: int
    ) -> None:
        """Report hosts that were lost before this epoch began, and hosts that were replaced because their
        executors are being decommissioned."""
        with self._deciding():
            now_ms = self._clock_ms()
            for host in lost:
                returns = host.host in self._relocation.hosts(host.step)
                slots = tuple(host.slots)
                self._handle(ev.HostLost(now_ms, epoch, host.step, host.host, slots, returns))
            for left in leaving:
                slots = tuple(left.slots)
                self._handle(ev.HostLeaves(now_ms, epoch, left.step, left.host, slots, left.by))

    def orders(self, epoch: int, partitions: int, started_ms: float) -> do.Orders:
        """Control's orders for the plan of an epoch that began at `started_ms`."""
        with self._deciding():
            self._handle(ev.EpochBegan(started_ms, epoch, partitions, self._aid()))
            return self.machine.orders

    def begin(self, plan: EpochPlan) -> None:
        """Note that a run of an epoch begins."""
        with self._lock:
            self._plan = plan

    def reported(self, seen: Sequence[Seen]) -> None:
        """Take in the reports of the run's couriers so far. Once all have reported, the epoch is examined in
        another thread; this returns at once."""
        plan = self._plan
        if plan is not None and len(seen) == plan.partitions:
            self._early.submit(self._look_early, plan, list(seen))

    def _look_early(self, plan: EpochPlan, seen: Sequence[Seen]) -> None:
        with self._lock:
            if plan is self._plan and self._read_epoch < plan.epoch:
                self._handle_read(plan, seen, look=True)

    def sealed(
        self,
        plan: EpochPlan,
        seen: Sequence[Seen],
        sealed: Sequence[SealedHost],
        written_ms: float,
        done_ms: float,
    ) -> None:
        """Take in an epoch that is durable and has been in the sink since `written_ms`."""
        unread = self._unread()
        with self._deciding():
            if self._read_epoch < plan.epoch:
                self._handle_read(plan, seen, look=False)
            waited = {name: part.wait_ms for name, part in offloaded_by_segment(seen).items()}
            self._ask_usage(seen, bool(waited))
            vitals = {host.host: host.vitals for host in sealed}
            closed_ms = {host: noted.closed_ms for host, noted in vitals.items()}
            started_ms, latency = (
                self.machine.started_ms,
                latency_of(seen, written_ms, self.machine.started_ms),
            )
            steps = dict[str, ev.StepSealed]()
            for routes in plan.steps:
                table = routes.routes
                work = {
                    host: Work(vitals[host].rows, vitals[host].useful_ms, self._cpu(host))
                    for host in table.hosts
                    if host in vitals
                }
                spent_ms = max((done.useful_ms for done in work.values()), default=0.0)
                steps[routes.step] = ev.StepSealed(
                    table.hosts,
                    table.owner.astype(np.int64),
                    work,
                    max(spent_ms, waited.get(routes.step, 0.0)),
                    self._placement(routes.step, routes.routes),
                    applied_after(
                        *(routes.step, seen, table.owner, table.hosts, closed_ms),
                        *(started_ms, written_ms),
                    ),
                    sum(vitals[host].helped_rows for host in table.hosts if host in vitals),
                    {host: vitals[host].workers for host in table.hosts if host in vitals},
                    self._late(routes, seen, closed_ms, written_ms),
                )
            self._handle(
                ev.EpochSealed(
                    self._clock_ms(),
                    plan.epoch,
                    written_ms,
                    done_ms,
                    steps,
                    tuple(_noted(task, bool(plan.timed)) for task in seen),
                    plan.partitions,
                    overlapped=bool(waited),
                    aid=self._aid(),
                    unread=unread,
                    tail=_tail(latency),
                )
            )

    def _late(
        self,
        routes: StepRoutes,
        seen: Sequence[Seen],
        closed_ms: Mapping[str, Mapping[int, float]],
        written_ms: float,
    ) -> Floats | None:
        """Records of a step's epoch that took longer than the bound on its 99th percentile, by slot."""
        bound_ms, table = self.machine.steps[routes.step].p99_ms, routes.routes
        if bound_ms is None:
            return None
        times_ms = (self.machine.since_ms, self.machine.started_ms, written_ms)
        owner = table.owner.astype(np.int64)
        return late_after(routes.step, seen, owner, table.hosts, closed_ms, times_ms, bound_ms)

    # -- live flows

    @property
    def delta_ms(self) -> float:
        """Length of a time slot in milliseconds."""
        return self.machine.habits.delta_ms

    def time_slot(self, samples: Mapping[str, StepSample] | None) -> None:
        """Examine a time slot that has ended. `samples` is None if a courier has not reported."""
        with self._deciding():
            now_ms = self._clock_ms()
            m = int(now_ms / self.delta_ms)
            if m <= self._time_slot:
                return
            self._time_slot = m
            for step in self._flow.keyed:
                sample = None if samples is None else samples[step.id]
                self._handle(self._slot_ended(now_ms, m, step, sample))

    def _slot_ended(
        self, now_ms: float, m: int, step: KeyedStep, sample: StepSample | None
    ) -> ev.TimeSlotEnded:
        table = self._relocation.routes(step.id)
        owner, placement = table.owner.astype(np.int64), self._placement(step.id, table)
        at = (now_ms, m, step.id)
        if sample is None:
            unknown = np.full(len(owner), -1.0)
            owners, aid = (table.hosts, owner), self._aid()
            return ev.TimeSlotEnded(
                *at, unknown, unknown, *owners, None, unknown, placement, aid=aid
            )
        return ev.TimeSlotEnded(
            *at,
            sample.arrived,
            sample.completed,
            table.hosts,
            owner,
            # a host without records does not report
            {
                host: replace(sample.work.get(host, Work(0, 0.0)), cpu=self._cpu(host))
                for host in table.hosts
            },
            sample.measured_ms,
            placement,
            sample.waiting_ms,
            self._aid(),
        )

    @property
    def guides(self) -> Guides:
        """Current instructions for the couriers of a live flow."""
        with self._lock:
            orders = self.machine.orders
            steps = (
                StepGuide(step, order.watched, order.two_stage, orders.offloads.get(step))
                for step, order in orders.steps.items()
            )
            return Guides(tuple(steps), self.reach)

    def counted_keys(self, epoch: int, seen: Sequence[Seen]) -> None:
        """Take in a durable epoch of a live flow: the couriers' counts of frequent keys, and of rows that
        went to burst workers."""
        hot = tuple(count for task in seen for count in task.hot)
        self._ask_usage(seen, any(task.offloaded for task in seen))
        tail = _tail(live_latency_of(seen)) if self._has_p99 else None
        if hot or tail is not None or any(task.routed or task.offloaded for task in seen):
            loads = {
                step.id: sum(known[1:], known[0].copy())
                if known
                else np.zeros(step.slots, np.int64)
                for step in self._flow.keyed
                for known in [[task.loads[step.id] for task in seen if step.id in task.loads]]
            }
            with self._deciding():
                noted = tuple(_noted(task, False) for task in seen)
                now_ms = self._clock_ms()
                self._handle(ev.KeysCounted(now_ms, epoch, hot, loads, noted, self._aid(), tail))

    @property
    def _has_p99(self) -> bool:
        sla = self.machine.sla
        return sla is not None and any(bound.p99 for bound in sla.bounds)

    def stop(self) -> None:
        """End the control loop's thread."""
        self._early.shutdown()

    # -- events

    def _times(self) -> tuple[float, float, float]:
        machine = self.machine
        return machine.habits.delta_ms, machine.since_ms, machine.started_ms

    def _handle_read(self, plan: EpochPlan, seen: Sequence[Seen], look: bool) -> None:
        steps = {
            str(routes.step): ev.StepRead(
                arrivals_of(routes.step, len(routes.routes.owner), seen, *self._times()),
                self._placement(routes.step, routes.routes),
            )
            for routes in plan.steps
        }
        self._read_epoch = plan.epoch
        self._handle(ev.EpochRead(self._clock_ms(), plan.epoch, steps, look, self._aid()))

    def _placement(self, step: str, table: RouteTable) -> ev.StepPlacement:
        """All hosts of a step, including those without slots, and the owner of each slot."""
        idle = [host for host in self._relocation.hosts(step) if host not in table.hosts]
        pending = self._relocation.pending_of(step)
        owner = table.owner.astype(np.int64)
        return ev.StepPlacement((*table.hosts, *idle), owner, pending, splits=table.splits)

    def _aid(self) -> ev.Aid:
        return ev.Aid(self.reach is not None, self.money, self._together())

    def _ask_usage(self, seen: Sequence[Seen], used: bool) -> None:
        """Request the cost of burst workers: while they are in use, and once more after that."""
        if self._keeper is None:
            return
        for task in seen:
            self._keeper.note(task.used)
        if used or self._asked:
            self._keeper.ask()
        self._asked = used

    # -- instructions

    def _handle(self, event: ev.Event) -> list[do.WaitFor]:
        """Send an event to the machine and carry out its instructions, but return those to wait."""
        instructions = self.machine.handle(event)
        self._record(event)
        waits = []
        for instruction in instructions:
            match instruction:
                case do.Tell(entry):
                    if self.machine.habits.decides:
                        log_entry(entry)
                    self._sink(entry)
                case do.Treat():
                    self._treat(instruction)
                case do.Stay(step):
                    self._relocation.stay(step)
                case do.Lend(_, epoch, helpers):
                    self._relocation.lend(epoch, helpers)
                case do.SplitSlot():
                    self._split(instruction)
                case do.UniteSlots(step, slots):
                    self._relocation.unite(step, slots)
                case do.KeepWarm(step, count):
                    self._keep_warm(step, count)
                case do.RenewWorkers():
                    if self._keeper is not None:
                        self._keeper.renew()
                case do.WaitFor():
                    waits.append(instruction)
        return waits

    def _split(self, split: do.SplitSlot) -> None:
        """Split a slot, and report to the machine if that was refused."""
        try:
            self._relocation.split(split.step, split.parts)
        except PenstockError as error:
            wanted = f"to split slot {split.slot}"
            refused = (self._clock_ms(), split.epoch, split.step, str(error), wanted)
            self._handle(ev.TreatmentRefused(*refused))

    def _treat(self, treat: do.Treat) -> None:
        """Start treatments, and report to the machine whether they began or were refused."""
        step, epoch, treatments = treat.step, treat.epoch, treat.treatments
        try:
            names = self._relocation.treat(step, treatments)
        except PenstockError as error:
            wanted = "; ".join(str(treatment) for treatment in treatments)
            self._handle(ev.TreatmentRefused(self._clock_ms(), epoch, step, str(error), wanted))
            return
        named = tuple(
            replace(t, source=names.get(t.source, t.source), target=names.get(t.target, t.target))
            for t in treatments
        )
        self._handle(ev.TreatmentBegun(self._clock_ms(), epoch, step, named, tuple(names.values())))

    def _keep_warm(self, step: str, count: int) -> None:
        """Keep burst workers warm for a step. Steps work one after another, so they share workers."""
        self._warm[step] = count
        if self._keeper is not None:
            self._keeper.warm(max(self._warm.values()))

    # -- for users

    @property
    def reach(self) -> str | None:
        """Address at which couriers reach burst workers; None if there are none."""
        return None if self._keeper is None else self._keeper.reach

    @property
    def money(self) -> Money | None:
        """Cost so far; None if it is not tracked."""
        return None if self._bill is None else self._bill.money

    @property
    def journal(self) -> Journal:
        """Decisions, their reasons and their outcomes."""
        return self.machine.journal

    def note(self, entry: Entry) -> None:
        """Add an entry for a decision that was made elsewhere."""
        with self._lock:
            self.journal.add(entry)

    def steer(self, steering: Steering) -> dict[str, Any]:
        """Change settings from the next decision on. Returns the settings that are now in force."""
        with self._lock:
            self._handle(ev.Steered(self._clock_ms(), steering))
            return self.facts()

    def success(self) -> dict[str, Success]:
        """Step and kind of bound, such as "clicks: p99" -> share of windows in which its slots kept it."""
        with self._lock:
            return {name: counts.rates() for name, counts in self._counts()}

    def slot_success(self) -> dict[str, list[Success]]:
        """Step and kind of bound, such as "clicks: p99" -> share of windows in which each slot kept it."""
        with self._lock:
            return {name: counts.by_place() for name, counts in self._counts()}

    def _counts(self) -> Iterator[tuple[str, Windows]]:
        for step, control in self.machine.steps.items():
            for kind, counts in control.success.items():
                yield f"{step}: {kind}", counts

    def facts(self) -> dict[str, Any]:
        """The state and settings of control, as JSON values."""
        with self._lock:
            return control_facts(self.machine, self._keeper, self.opening.segments, self.money)


def log_entry(entry: Entry) -> None:
    """Log a journal entry. A decision's line says what is done, why, and the expected effect."""
    level = _LEVELS.get(entry.event, logging.DEBUG)
    if entry.event == "decided" and (
        entry.facts.get("treatments") or entry.facts.get("health") == "severe"
    ):
        level = logging.INFO
    fields = {name: entry.facts[name] for name in _FIELDS if name in entry.facts}
    fields |= {"step": entry.step, "epoch": entry.epoch, "event": entry.event}
    _log.log(level, "Step %s, %s: %s", entry.step, entry.event, entry.text, extra=fields)


def _tail(latency: Latency | None) -> float | None:
    """The 99th percentile as a multiple of the average; None if it is not known."""
    return None if latency is None or latency.mean_ms <= 0 else latency.p99_ms / latency.mean_ms


def _noted(task: Seen, times: bool) -> Seen:
    """The part of a courier's report that control needs. Arrival times are needed only for segments without a
    keyed step."""
    task = replace(task, event_ms=(), late={}, latencies_us=(), latency_counts=())
    return task if times else replace(task, arrivals_ms=(), counts=())
