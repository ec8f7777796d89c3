"""The courier: takes one source partition's batches through all steps of a flow.

It runs inside a Spark task, as the function of `mapInArrow`. All input is consumed, and every
channel closed, before the first output row leaves: a sink that stops reading early loses no state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from penstock.courier.exchange import Exchange, Task, endpoint, through_hosts
from penstock.courier.trouble import Trouble, as_schema, told
from penstock.courier.witness import Witness
from penstock.errors import PenstockError, to_wire
from penstock.faults import Fault, arm
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan, MapStep
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
    faults: tuple[Fault, ...] = ()
    """For tests."""

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
        witness = Witness(self.flow.arrival, self.flow.event_time)
        trouble = Trouble(self.flow.on_error)
        driver = endpoint(plan.driver, plan.token)
        where = {"epoch": plan.epoch, "run": plan.run, "partition": task.partition}

        def report() -> None:
            driver.call("report", self.timeout_ms, **where, seen=witness.to_json())

        data: Iterable[pa.RecordBatch] = witness.watch(batches)
        keyed = 0
        for step in self.flow.steps:
            if isinstance(step, MapStep):
                data = trouble.mapped(step, data)
                continue
            # The last keyed step has read all input, so what was seen of it can be told already.
            last = keyed + 1 == len(plan.steps)
            with Exchange(plan, keyed, task, self.exchange_ms) as exchange:
                data = through_hosts(step, exchange, data, trouble, report if last else None)
            keyed += 1
        done = [as_schema(batch, self.flow.output, "output") for batch in data]
        if trouble.letters:
            letters = dead_to_bytes(trouble.letters).decode()
            driver.call("dead_letters", self.timeout_ms, **where, letters=letters)
        return done

    def _tell(self, plan: EpochPlan, failed: Exception) -> None:
        """Let the driver have the error itself, not only Spark's account of it."""
        error = to_wire(told(failed))
        with suppress(PenstockError):
            endpoint(plan.driver, plan.token).call(
                "trouble", self.timeout_ms, epoch=plan.epoch, run=plan.run, error=error
            )
