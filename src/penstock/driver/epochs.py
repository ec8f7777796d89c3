"""The epoch protocol, from the driver's side: plan, write, seal, commit; run again if a host dies.

This module does not use Spark: the function that writes an epoch's output is a parameter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count

import pyarrow as pa

from penstock.control.instructions import Orders, StepOrders
from penstock.driver.awaiting import Awaiting
from penstock.driver.bill import Bill
from penstock.driver.clock import wall_ms
from penstock.driver.control_loop import ControlLoop
from penstock.driver.fleet import Fleet, SealedHost
from penstock.driver.helping import Helping
from penstock.driver.progress import (
    EpochProgress,
    couriers_progress,
    host_progress,
    latency_of,
    migration_progress,
    summed_loads,
)
from penstock.driver.registry import Registry
from penstock.driver.relocation import Relocation
from penstock.driver.versions import MadeOf, ReadyManifest, Tries, Versions
from penstock.errors import CheckpointError
from penstock.faults import point
from penstock.model import StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, StepRoutes
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.spans import Laps, Span
from penstock.state.store.store import Store
from penstock.wire.flight import in_own_thread
from penstock.wire.report import Seen, added, offloaded_by_segment

Write = Callable[[EpochPlan], None]
"""Runs the epoch's couriers with this plan and writes their output to the sink; raises if that fails."""


LateSink = Callable[[int, dict[tuple[str, int], pa.Table]], None]
"""Takes an epoch's late rows by step and input, if there are any, before the epoch is durable."""


class EpochRunner:
    """Runs epochs one after another. Used by one thread: the query's."""

    def __init__(
        self,
        flow: FlowPlan,
        fleet: Fleet,
        relocation: Relocation,
        registry: Registry,
        store: Store,
        settings: Settings,
        clock_ms: Callable[[], float] = wall_ms,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        control: ControlLoop | None = None,
        bill: Bill | None = None,
        late_sink: LateSink = lambda epoch, rows: None,
        keep_time: bool = False,
    ) -> None:
        """With `keep_time` all runs of an epoch use the same time of day, even after a crash. A sink that
        ignores the second write of an epoch needs that: a window that is due only in the second run would
        never reach it."""
        self._flow, self._fleet, self._registry, self._store = flow, fleet, registry, store
        self._settings, self._clock_ms, self._steady_ms = settings, clock_ms, steady_ms
        self._relocation, self._control, self._bill = relocation, control, bill
        self.versions = Versions(flow, fleet, store, settings, clock_ms, steady_ms)
        self._late_sink, self._keep_time = late_sink, keep_time
        shares = settings.piece_ms is not None and not (flow.one_host or flow.in_order)
        self._helping = Helping(relocation, fleet, shares)
        self._stage = Awaiting()
        self._read_ms = 0.0
        """Time of the newest courier's report, in milliseconds since 1970."""
        self._running = False
        """Whether an epoch is on its way to the sink."""
        self._plan_now: EpochPlan | None = None
        """Plan of the run whose couriers are at work; None while there is none."""
        self._ahead: Future[ReadyManifest] | None = None
        """Manifest of the run, prepared once all hosts have sealed; None until all couriers have reported."""
        self._laps = Laps(-1, "driver")
        """Spans of the driver in the newest epoch."""

    def run(
        self,
        epoch: int,
        partitions: int,
        write: Write,
        closing: int = 0,
        began_ms: float | None = None,
    ) -> EpochProgress:
        """Run an epoch until it is in the sink and durable.

        `closing` is for the end of a bounded input, which takes one epoch for each keyed step on a row's
        path. In the n-th of these epochs, all steps at depth n or less close their windows. `began_ms` is the
        time at which the driver's work for this epoch began, if that was before this call.
        """
        earlier = self._laps.take()
        laps = self._laps = Laps(epoch, "driver", since_ms=began_ms)
        self.begin(epoch)
        self._registry.recovery.begin(epoch)
        started_ms, now_ms = self._clock_ms(), self._epoch_time(epoch)
        settings = self._settings
        tries = Tries(settings.epoch_runs, settings.rpc_timeout_ms, self._steady_ms)
        for run in count():
            try:
                self._registry.must_be_served()
                if self._control is not None:
                    self._control.wait_for_hosts()
                self._waits(epoch, run, "hosts to take their slots")
                self._registry.expect(epoch, run, self._on_report)
                self._running = True
                self._settle(epoch, run)
                plan = self._plan(epoch, run, partitions, started_ms, now_ms, closing)
                if self._control is not None:
                    self._control.begin(plan)
                self._waits(epoch, run, "couriers")
                self._helping.begin(plan)
                self._plan_now = plan
                laps.lap("prepare")
                write(plan)
                laps.lap("write")
                written_ms = self._clock_ms()
                self._running = False
                point("driver.written", epoch=epoch, run=run)
                self._waits(epoch, run, "hosts to seal it")
                sealed = self._fleet.seal(plan)
                laps.lap("seal")
                break
            except Exception as failed:
                self._forget_ahead()
                cause = self._registry.trouble() or failed
                self._store.must_own()  # else a newer driver has caused the failure
                self._waits(epoch, run, "hosts to go back")
                self._fleet.judge(self._registry.complaints())
                lost = self._fleet.roll_back(epoch - 1, run)
                tries.again(epoch, failed, cause, lost)
                self._registry.recovery.run_again(epoch)
                laps.lap("failed run")
            finally:
                self._plan_now = None
                self._helping.end()
                self._stage.goes_on()
        ahead, self._ahead = self._ahead, None
        ready = None if ahead is None or ahead.exception() else ahead.result()
        point("driver.sealed", epoch=epoch, run=plan.run)
        seen, dead = self._registry.seen(), self._registry.dead_letters()
        late = self._registry.late_rows()
        if late:
            self._late_sink(epoch, late)
        self.versions.commit(
            epoch,
            plan.run,
            [delta for host in sealed for delta in host.deltas],
            {step.step: step.routes for step in plan.steps},
            self._relocation.placements(),
            seen,
            dead,
            ready=ready,
        )
        laps.lap("manifest")
        point("driver.committed", epoch=epoch, run=plan.run)
        self._registry.recovery.durable(epoch)
        self._relocation.sealed(epoch, sealed)
        self.versions.tidy(self._relocation.owners())
        if self._control is not None:
            self._control.sealed(plan, seen, sealed, written_ms, self._clock_ms())
        return EpochProgress(
            epoch=epoch,
            runs=plan.run + 1,
            rows=sum(s.rows for s in seen),
            partitions=partitions,
            started_ms=int(started_ms),
            sink_ms=written_ms - started_ms,
            seal_ms=self._clock_ms() - written_ms,
            latency=latency_of(seen, written_ms, started_ms),
            watermark_ms=plan.steps[0].time.watermark_ms if plan.steps else None,
            dead_letters=len(dead),
            late_rows=late_counts(seen),
            hosts=tuple(host_progress(s.host, s.vitals) for s in sealed),
            migration=migration_progress(self._relocation.taken(), [s.vitals for s in sealed]),
            functions=added(offloaded_by_segment(seen).values()),
            couriers=couriers_progress(seen),
            money=None if self._bill is None else self._bill.money,
            read_ms=max(0.0, self._read_ms - started_ms),
            loads=summed_loads(seen),
            spans=_spans(earlier, laps, seen, sealed),
        )

    def ended(self) -> None:
        """Note that the driver's work for the newest epoch has ended."""
        self._laps.lap("after")

    def next_epoch(self) -> int:
        """Number of the epoch after the newest durable one."""
        return self.versions.next_epoch()

    @property
    def seen(self) -> list[Seen]:
        """Reports of the current run's couriers."""
        return self._registry.seen()

    @property
    def backlog(self) -> int:
        """Number of rows that couriers have read and whose output is not in the sink."""
        return sum(task.rows for task in self.seen) if self._running else 0

    @property
    def reported(self) -> int:
        """Number of couriers of the current run that have reported."""
        return len(self.seen)

    @property
    def waiting(self) -> str:
        """Description of the current wait, or "" if it has been short."""
        return str(self._stage)

    def _waits(self, epoch: int, run: int, what: str) -> None:
        self._stage.waits(f"epoch {epoch} run {run + 1}: waiting for {what}")

    @property
    def upkeep_trouble(self) -> str:
        """Parts of the store's upkeep that failed the last time, with reasons; "" if none did."""
        return self.versions.upkeep.trouble

    def stop(self) -> None:
        """End control and upkeep, after the last epoch."""
        if self._control is not None:
            self._control.stop()
        self._helping.stop()
        self.versions.upkeep.stop()

    def begin(self, epoch: int) -> None:
        """Continue from the checkpoint before `epoch`, the first of this start. Later calls do nothing."""
        if self.versions.newest is not None:
            return
        newest = max(self._store.epochs(), default=-1)
        if newest > epoch:
            raise CheckpointError(
                f"{self._store.uri} has epoch {newest}, but Spark's log starts at epoch {epoch}",
                hint="Spark's part of the checkpoint was removed or replaced: restore it, or start "
                "from a new checkpoint folder",
            )
        self._relocation.begin(self.versions.take_up(epoch - 1))

    def _epoch_time(self, epoch: int) -> int:
        """The time of day of an epoch, in milliseconds since 1970."""
        if not self._keep_time:
            return self.versions.time.now_ms()
        begun = self._store.read_begun()
        if begun is None or begun["epoch"] != epoch:
            begun = {"epoch": epoch, "time_ms": self.versions.time.now_ms()}
            self._store.write_begun(begun)
        return begun["time_ms"]

    def _on_report(self, seen: list[Seen]) -> None:
        """Hand the couriers' reports to control, which examines them before the epoch is done."""
        self._read_ms = self._clock_ms()
        plan = self._plan_now
        if plan is not None and len(seen) == plan.partitions and self._ahead is None:
            sealing = self._fleet.seal_soon(plan)
            self._ahead = in_own_thread(lambda: self._prepare(plan, sealing), "manifest")
        if self._control is not None:
            self._control.reported(seen)

    def _prepare(self, plan: EpochPlan, sealing: Sequence[Future[SealedHost]]) -> ReadyManifest:
        """Wait for all hosts to seal, and write the manifest ahead. It is used if the run succeeds."""
        deltas = tuple(delta for host in sealing for delta in host.result().deltas)
        routes = {str(step.step): step.routes for step in plan.steps}
        placements, seen = self._relocation.placements(), tuple(self._registry.seen())
        return self.versions.prepare(MadeOf(plan.epoch, plan.run, deltas, routes, placements, seen))

    def _forget_ahead(self) -> None:
        """Remove the prepared manifest of a failed run, now or when it is written."""
        self._plan_now = None  # a late report begins no other
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.add_done_callback(
                lambda done: None if done.exception() else self.versions.discard(done.result())
            )

    def _settle(self, epoch: int, run: int) -> None:
        """Give every slot a ready owner, and report lost hosts to control."""
        try:
            self._relocation.settle(epoch - 1, epoch, run)
        finally:
            lost, leaving = self._relocation.take_lost(), self._relocation.take_leaving()
            if self._control is not None:
                self._control.lost_and_leaving(lost, leaving, epoch)

    def _plan(
        self,
        epoch: int,
        run: int,
        partitions: int,
        started_ms: float,
        now_ms: int,
        closing: int,
    ) -> EpochPlan:
        control = self._control
        orders = Orders() if control is None else control.orders(epoch, partitions, started_ms)
        steps = tuple(
            StepRoutes(
                step=StepId(step.id),
                routes=routes,
                endpoints=self._fleet.endpoints(routes.hosts),
                time=EpochTime(
                    epoch,
                    now_ms,
                    self.versions.watermarks[step.id],
                    self._flow.depths[step.id] <= closing,
                ),
                watched=order.watched,
                two_stage=order.two_stage,
                offload=orders.offloads.get(step.id),
            )
            for step in self._flow.keyed
            for routes in [self._relocation.routes(step.id)]
            for order in [orders.steps.get(step.id, StepOrders())]
        )
        return EpochPlan(
            epoch,
            run,
            partitions,
            steps,
            self._registry.location,
            reach=control.reach if control is not None and orders.offloads else None,
            map_offloads=tuple((n, o) for n, o in orders.offloads.items() if n in orders.timed),
            timed=orders.timed,
        )


def _spans(
    earlier: Sequence[Span], laps: Laps, seen: Sequence[Seen], sealed: Sequence[SealedHost]
) -> tuple[Span, ...]:
    """All spans that have arrived since the last epoch."""
    couriers = (span for courier in seen for span in courier.spans)
    hosts = (span for host in sealed for span in host.vitals.spans)
    return (*earlier, *laps.take(), *couriers, *hosts)


def late_counts(seen: Sequence[Seen]) -> dict[str, int]:
    """Step -> number of its late rows."""
    counts: Counter[str] = Counter()
    for courier in seen:
        counts.update(dict(courier.late))
    return dict(counts)
