"""What a function does: pure, the same wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, StepError
from penstock.exchange.step_work import conformed
from penstock.offload.backends.messages import FunctionAnswer, Request, flow_mark
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, Step
from penstock.state.table.buffers import fixed_array


class Work:
    """Answers requests about one flow. Holds nothing between two of them."""

    def __init__(self, flow: FlowPlan) -> None:
        self._mark = flow_mark(flow)
        self._steps: dict[str, Step] = {step.id: step for step in flow.steps}

    def answer(self, body: bytes) -> bytes:
        """The answer to a request.

        A row that a stateless step fails on, or that the keyed step cannot take, fails the whole
        invocation: it is the courier that knows what to do about such rows.
        """
        request = Request.from_bytes(body)
        if request.flow != self._mark:
            raise FlowError(
                "this function was made for another flow than the one that asks",
                hint="package the flow again, and deploy that",
            )
        return done(request, [self._steps[step] for step in request.steps]).to_bytes()

    def rehearse(self) -> None:
        """Call the compiled kernels of all steps that merge once, with made-up rows."""
        for step in self._steps.values():
            if isinstance(step, KeyedStep) and step.plan.merges:
                # user's columns may be of any type: what cannot be made up is compiled later
                with suppress(Exception):
                    rows = _made_up(step.plan.inputs[0])
                    done(Request("", (step.id,), EpochTime(0, 0), "", (rows,)), [step])


def answer(flow: FlowPlan, body: bytes) -> bytes:
    """The answer to one request about a flow."""
    return Work(flow).answer(body)


def done(request: Request, steps: Sequence[Step]) -> FunctionAnswer:
    """What a segment's steps make of a request's rows."""
    batches: Iterable[pa.RecordBatch] = request.batches
    for step in steps:
        if isinstance(step, KeyedStep):
            return _combined(request, step, batches)
        batches = _mapped(step, batches)
    return FunctionAnswer(request.id, ROWS, tuple(batches))


def _mapped(step: MapStep, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return [out for batch in batches for out in conformed(step, step.function(batch))]


def _combined(
    request: Request, step: KeyedStep, batches: Iterable[pa.RecordBatch]
) -> FunctionAnswer:
    sender = step.plan.sender(request.time, two_stage=True)
    sent = []
    for batch in batches:
        unfit = step.plan.unfit(0, batch)
        if unfit is not None:
            raise StepError(f"step {step.id}: rows have {unfit.reason}", step=step.id)
        sent += [outgoing.batch for outgoing in sender.add(0, batch)]
    kind, rest = sender.finish()
    sent += [outgoing.batch for outgoing in rest]
    return FunctionAnswer(
        request.id,
        kind,
        tuple(batch for batch in sent if batch.num_rows),
        tuple(rows for _, rows in sender.late if rows.num_rows),
    )


def _made_up(schema: pa.Schema) -> pa.RecordBatch:
    numbers = fixed_array(np.array([1, 2, 1]), pa.int64())
    return pa.RecordBatch.from_arrays([numbers.cast(field.type) for field in schema], schema=schema)
