"""The work of a burst worker: a pure function of its request, the same on every backend."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, StepError
from penstock.exchange.step_work import conformed
from penstock.offload.backends.messages import Request, WorkerAnswer, flow_mark
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.steps import FlowPlan, KeyedStep, Step
from penstock.state.arrays import fixed_array
from penstock.wire.cpu import cores_allowed


class BurstWorker:
    """Answers requests about one flow. Keeps no state between requests."""

    def __init__(self, flow: FlowPlan, speed: float = 1.0) -> None:
        """`speed` is that of a slower burst worker which this one emulates: it reports so much more CPU."""
        # a container with less than a core takes longer for the same CPU time
        self._speed = speed * min(1.0, cores_allowed())
        self.mark = flow_mark(flow)
        """Fingerprint of the flow and code that it was made of: see `flow_mark`."""
        self._steps: dict[str, Step] = {step.id: step for step in flow.steps}

    def answer(self, body: bytes) -> bytes:
        """Run a segment's steps on the rows of a request, and return the answer.

        If a stateless step fails on a row, or the keyed step cannot take it, the whole invocation fails. The
        courier then handles such rows.
        """
        began = time.thread_time()
        request = Request.from_bytes(body)
        if request.flow != self.mark:
            raise FlowError(
                "this burst worker was packaged from another flow, other user code or another release of "
                "Penstock than the flow that uses it",
                hint="package the flow again, and deploy the new package",
            )
        answer = self._run(request)
        cpu_ms = 1000 * (time.thread_time() - began) / self._speed
        return replace(answer, cpu_ms=round(cpu_ms, 3)).to_bytes()

    def rehearse(self) -> None:
        """Run all steps that merge once, with generated rows, so that their kernels are compiled. User code
        is not called: it has not agreed to such rows."""
        for step in self._steps.values():
            if isinstance(step, KeyedStep) and step.plan.merges and not step.plan.code:
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
    plan = step.plan
    sender, inputs = plan.partial_sender(request.time), plan.all_inputs
    sent = []
    for input, rows in (part for batch in batches for part in inputs.unpack(batch)):
        unfit = plan.unfit(input, rows)
        if unfit is not None:
            raise StepError(f"step {step.id}: rows have {unfit.reason}", step=step.id)
        sent += [outgoing.batch for outgoing in sender.add(input, rows)]
    kind, rest = sender.finish()
    sent += [outgoing.batch for outgoing in rest]
    return WorkerAnswer(
        request.id,
        kind,
        tuple(batch for batch in sent if batch.num_rows),
        tuple(inputs.pack(input, rows) for input, rows in sender.late if rows.num_rows),
    )


def _made_up(schema: pa.Schema) -> pa.RecordBatch:
    numbers = fixed_array(np.array([1, 2, 1]), pa.int64())
    return pa.RecordBatch.from_arrays([numbers.cast(field.type) for field in schema], schema=schema)
