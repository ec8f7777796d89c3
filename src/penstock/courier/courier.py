"""The courier: takes one source partition's batches through all steps of a flow.

It runs inside a Spark task, as the function of `mapInArrow`. All input is consumed, and every
channel closed, before the first output row leaves: a sink that stops reading early loses no state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.courier.exchange import Exchange, Late, Task, endpoint, through_hosts
from penstock.courier.late_rows import LateRows
from penstock.courier.one_host import through_one_host
from penstock.courier.streams import Streams
from penstock.courier.tally import Tally, told_of
from penstock.courier.trouble import Trouble, as_schema, told
from penstock.courier.witness import Watched, Witness
from penstock.errors import PenstockError, to_wire
from penstock.faults import Fault, arm
from penstock.model import DeadLetter
from penstock.offload.courier.redirect import through_hosts_and_functions
from penstock.offload.courier.report import told_of_functions
from penstock.offload.courier.stateless_work import told_of_maps
from penstock.offload.courier.task import Offloads
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep
from penstock.wire.flight import Endpoint
from penstock.wire.messages import dead_to_bytes

_settled = False


def _settle() -> None:
    """Take everything that is loaded by now out of the garbage collector's sight, once per worker.

    Spark's worker collects garbage after every task; over all that Arrow, numba and pandas load
    that is tens of milliseconds of a core, each time.
    """
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True


@dataclass(frozen=True)
class Courier:
    """What is shipped to Spark tasks. `context` is how a task learns its plan and its place."""

    flow: FlowPlan
    context: Callable[[], tuple[EpochPlan, Task]]
    timeout_ms: int
    """For a call to the driver."""
    exchange_ms: int
    """For a conversation with a host, which lasts as long as the source brings rows."""
    keep_late: bool = False
    """Whether somebody wants to have the rows that came too late."""
    faults: tuple[Fault, ...] = ()
    """For tests: see `Settings`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        arm(self.faults)
        plan, task = self.context()
        try:
            done = self._deliver(batches, plan, task)
        except Exception as failed:
            self._tell(plan, failed)
            raise
        _settle()
        yield from done

    def _deliver(
        self, batches: Iterator[pa.RecordBatch], plan: EpochPlan, task: Task
    ) -> list[pa.RecordBatch]:
        flow = self.flow
        witness = Witness([Watched(s.arrival, s.event_time, s.partition) for s in flow.sources])
        trouble = Trouble(flow.on_error)
        driver = endpoint(plan.driver, plan.token)
        where = {"epoch": plan.epoch, "run": plan.run, "partition": task.partition}
        streams = Streams(flow, batches, witness)
        late = LateRows(self.keep_late)
        tallies: list[Tally] = []
        offloads = Offloads(flow, plan, task, trouble)

        def report() -> None:
            seen = witness.to_json() | {"late": list(late.counts.items())} | told_of(tallies)
            seen |= told_of_functions(offloads.facts(), offloads.used(), offloads.routed())
            seen |= told_of_maps(offloads.worked())
            driver.call("report", self.timeout_ms, **where, seen=seen)

        if flow.one_host and flow.keyed:
            source = streams.read(0)
            given, aside = through_one_host(plan, task, source, self.keep_late, self.exchange_ms)
            late.counts.update(aside.counts)
            report()
            self._set_aside(driver, where, aside.dead, aside.late)
            return given
        keyed = 0
        for number, step in enumerate(flow.steps):
            inputs = [streams.read(stream) for stream in flow.reads(number)]
            if isinstance(step, MapStep):
                streams.add(offloads.mapped(step, inputs[0]))
                continue
            # The last keyed step has read all input and sent all records: what was seen and
            # counted can be told already, while its hosts work.
            last = keyed + 1 == len(plan.steps)

            def noted(rows: Late, step: KeyedStep = step, last: bool = last) -> None:
                late.add(step, rows)
                if last:
                    report()

            routes = plan.steps[keyed]
            redirect = offloads.redirect(step)
            tallies.append(Tally(step, routes.watched, keeps=redirect is not None))
            with Exchange(
                plan, keyed, task, self.exchange_ms, tallies[-1], flow.ordered
            ) as exchange:
                if redirect is None:
                    given = through_hosts(step, exchange, inputs, routes, trouble, noted)
                else:
                    made = Tally(step, keeps=True)
                    second = partial(Exchange, plan, keyed, task, self.exchange_ms, made, channel=1)
                    given = through_hosts_and_functions(
                        step, redirect, exchange, second, inputs[0], routes, trouble, noted
                    )
                streams.add(given)
            keyed += 1
        done = [as_schema(batch, flow.output, "output") for batch in streams.last()]
        if not plan.steps or offloads.tell_later():
            report()  # the last report of a task is the one that counts
        self._set_aside(driver, where, trouble.letters, late.to_json())
        return done

    def _set_aside(
        self,
        driver: Endpoint,
        where: dict[str, int],
        dead: list[DeadLetter],
        late: list[list[object]],
    ) -> None:
        """Let the driver have what did not go on."""
        if dead:
            letters = dead_to_bytes(dead).decode()
            driver.call("dead_letters", self.timeout_ms, **where, letters=letters)
        if late:
            driver.call("late_rows", self.timeout_ms, **where, rows=late)

    def _tell(self, plan: EpochPlan, failed: Exception) -> None:
        """Let the driver have the error itself, not only Spark's account of it."""
        error = to_wire(told(failed))
        with suppress(PenstockError):
            endpoint(plan.driver, plan.token).call(
                "trouble", self.timeout_ms, epoch=plan.epoch, run=plan.run, error=error
            )
