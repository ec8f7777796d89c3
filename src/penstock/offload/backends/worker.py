"""The work of a burst worker: a pure function of its request, the same on every backend."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, StepError
from penstock.exchange.step_work import conformed
from penstock.offload.backends.messages import Request, WorkerAnswer, flow_mark
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.steps import FlowPlan, KeyedStep, Step
from penstock.state.arrays import fixed_array


class BurstWorker:
    """Answers requests about one flow. Keeps no state between requests."""

    def __init__(self, flow: FlowPlan) -> None:
        self.mark = flow_mark(flow)
        """Fingerprint of the flow and code that it was made of: see `flow_mark`."""
        self._steps: dict[str, Step] = {step.id: step for step in flow.steps}

    def answer(self, body: bytes) -> bytes:
        """Run a segment's steps on the rows of a request, and return the answer.

        If a stateless step fails on a row, or the keyed step cannot take it, the whole invocation fails. The
        courier then handles such rows.
        """
        request = Request.from_bytes(body)
        if request.flow != self.mark:
            raise FlowError(
                "this burst worker was packaged from another flow, other user code or another release of "
                "Penstock than the flow that uses it",
                hint="package the flow again, and deploy the new package",
            )
        return self._run(request).to_bytes()

    def rehearse(self) -> None:
        """Run all steps that merge once, with generated rows, so that their kernels are compiled."""
        for step in self._steps.values():
            if isinstance(step, KeyedStep) and step.plan.merges:
                # rows cannot be generated for all column types: such kernels are compiled later
                with suppress(Exception):
                    rows = _made_up(step.plan.inputs[0])
                    self._run(Request("", (step.id,), EpochTime(0, 0), "", (rows,)))

    def _run(self, request: Request) -> WorkerAnswer:
        batches: Iterable[pa.RecordBatch] = request.batches
        for step in (self._steps[id] for id in request.steps):
            if isinstance(step, KeyedStep):
                return _combined(request, step, batches)
            batches = [out for batch in batches for out in conformed(step, step.function(batch))]
        return WorkerAnswer(request.id, ROWS, tuple(batches))


def _combined(request: Request, step: KeyedStep, batches: Iterable[pa.RecordBatch]) -> WorkerAnswer:
    """Combine a keyed step's rows into partial states."""
    sender = step.plan.sender(request.time, two_stage=True)
    sent = []
    for batch in batches:
        unfit = step.plan.unfit(0, batch)
        if unfit is not None:
            raise StepError(f"step {step.id}: rows have {unfit.reason}", step=step.id)
        sent += [outgoing.batch for outgoing in sender.add(0, batch)]
    kind, rest = sender.finish()
    sent += [outgoing.batch for outgoing in rest]
    return WorkerAnswer(
        request.id,
        kind,
        tuple(batch for batch in sent if batch.num_rows),
        tuple(rows for _, rows in sender.late if rows.num_rows),
    )


def _made_up(schema: pa.Schema) -> pa.RecordBatch:
    numbers = fixed_array(np.array([1, 2, 1]), pa.int64())
    return pa.RecordBatch.from_arrays([numbers.cast(field.type) for field in schema], schema=schema)
