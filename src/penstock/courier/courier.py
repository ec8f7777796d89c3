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

from penstock.courier.exchange import Task, endpoint, through_hosts
from penstock.courier.trouble import Trouble, as_schema, told
from penstock.courier.witness import Witness
from penstock.errors import PenstockError, to_wire
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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
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
        data: Iterable[pa.RecordBatch] = witness.watch(batches)
        keyed = 0
        for step in self.flow.steps:
            if isinstance(step, MapStep):
                data = trouble.mapped(step, data)
            else:
                data = through_hosts(step, keyed, data, plan, task, trouble, self.timeout_ms)
                keyed += 1
        done = [as_schema(batch, self.flow.output, "output") for batch in data]
        endpoint(plan.driver, plan.token).call(
            "report",
            self.timeout_ms,
            epoch=plan.epoch,
            run=plan.run,
            partition=task.partition,
            seen=witness.to_json(),
            dead=dead_to_bytes(trouble.letters).decode(),
        )
        return done

    def _tell(self, plan: EpochPlan, failed: Exception) -> None:
        """Let the driver have the error itself, not only Spark's account of it."""
        error = to_wire(told(failed))
        with suppress(PenstockError):
            endpoint(plan.driver, plan.token).call(
                "trouble", self.timeout_ms, epoch=plan.epoch, run=plan.run, error=error
            )
