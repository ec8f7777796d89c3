"""Partial states of a keyed step's rows: from the answer of a burst worker, or made by the courier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.exchange.step_work import StepWork
from penstock.offload.backends.messages import Request, WorkerAnswer
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import EpochTime, Outgoing, Sender


@dataclass(frozen=True)
class Made:
    """The result of one request."""

    sent: list[Outgoing]
    """Records for the hosts."""
    late: tuple[tuple[int, pa.RecordBatch], ...] = ()
    """Late rows that a burst worker has set aside, as (input, rows) pairs."""


class Maker:
    """Makes partial states of one segment's keyed step. Safe to use from several threads."""

    def __init__(self, segment: Segment) -> None:
        assert segment.keyed is not None
        self.step, self._maps = segment.keyed, segment.maps

    @property
    def kind(self) -> str:
        """Kind of the records for hosts: ROWS or PARTIALS."""
        return self._form[0]

    def taken(self, answer: WorkerAnswer) -> Made:
        """The result in an answer. Raises an error if the hosts of the step cannot take it."""
        plan, (kind, columns) = self.step.plan, self._form
        if answer.batches and answer.kind != kind:
            raise ProtocolError(f"a burst worker returned {answer.kind} instead of {kind}")
        sent, late = _columns(answer.batches), _columns(answer.late)
        if (columns and sent - {columns}) or late - {tuple(plan.all_inputs.schema.names)}:
            raise ProtocolError(
                f"a burst worker returned columns that step {self.step.id} does not have"
            )
        late_rows = (part for batch in answer.late for part in plan.all_inputs.unpack(batch))
        return Made(list(answer.outgoing(plan)), tuple(late_rows))

    def alone(self, request: Request, work: StepWork) -> Made:
        """Make the result of a request in the courier, without a burst worker."""
        step, rows = self.step, iter(request.batches)
        for before in self._maps:
            rows = work.mapped(before, rows)
        inputs: list[list[pa.RecordBatch]] = [[] for _ in step.plan.inputs]
        for batch in rows:
            for input, part in step.plan.all_inputs.unpack(batch):
                inputs[input].append(part)
        sent: list[Outgoing] = []
        fit = [work.fit(step, input, some) for input, some in enumerate(inputs)]
        work.send(step, self._sender(request.time), fit, sent.append)
        return Made(sent)

    @cached_property
    def _form(self) -> tuple[str, tuple[str, ...]]:
        """Kind of the records for hosts, and their columns if a sender without rows shows them."""
        schema, sender = self.step.plan.inputs[0], self._sender(EpochTime(0, 0))
        none = [pa.nulls(0, field.type) for field in schema]
        sent = list(sender.add(0, pa.RecordBatch.from_arrays(none, schema=schema)))
        kind, rest = sender.finish()
        sent += rest
        return kind, tuple(sent[0].batch.schema.names) if sent else ()

    def _sender(self, time: EpochTime) -> Sender:
        return self.step.plan.partial_sender(time)


def _columns(batches: Iterable[pa.RecordBatch]) -> set[tuple[str, ...]]:
    return {tuple(batch.schema.names) for batch in batches}
