"""The road of a keyed step past burst workers: they get part of its rows, its hosts what they make of them.

A task has two channels to each host then. The first brings the rows that stay, as always. The second
brings the partial states of the rows that were set aside: those that burst workers made, and those that
the courier made itself where no answer came in time. So each channel always brings the same rows,
whatever becomes of burst workers, and a host that took in one of them can take the other from a later
try of the task. A task that has set nothing aside closes both with the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from penstock.courier.delivery import Delivery
from penstock.courier.roads import Batches, HostRoad
from penstock.errors import ProtocolError
from penstock.offload.backends.messages import Request, WorkerAnswer, cut_evenly
from penstock.offload.courier.carried import CarriedTally
from penstock.offload.courier.questions import Invocations, Questions
from penstock.offload.courier.router import Router
from penstock.operators.operator import PARTIALS, Outgoing, Sender
from penstock.plan.steps import KeyedStep
from penstock.wire.report import Routed, Seen


@dataclass(frozen=True)
class Made:
    """What was made of the rows of one request."""

    sent: list[Outgoing]
    """Records for the hosts."""
    late: tuple[pa.RecordBatch, ...] = ()
    """Rows that were too late for the step, where a burst worker found them."""


class BurstRoad(HostRoad):
    """A keyed step part of whose rows go to burst workers, and on to its hosts as partial states."""

    def __init__(
        self, delivery: Delivery, number: int, step: KeyedStep, questions: Questions
    ) -> None:
        super().__init__(delivery, number, step)
        self._tally: CarriedTally = CarriedTally(step, self._routes.watched)
        reflex = questions.offload.reflex
        self._reflex = reflex and reflex.of(delivery.task.partition, delivery.plan.partitions)
        self.router = Router(questions.segment, questions.offload, self._reflex)
        """Sets rows aside; in front of the segment's stateless steps, if it has any."""
        self._questions = questions
        self._asked: Invocations[Made] | None = None
        self._routed: Routed | None = None

    def send(self, inputs: Sequence[Batches]) -> None:
        (rows,) = inputs
        kind = self._send([self._stays(self._delivery.work.fit(self._step, 0, rows))])
        self._end(kind, alone=self._asked is None)
        router, combined = self.router, kind == PARTIALS
        if self._asked is not None:
            made = self._send_made(self._asked)
            self._tally.add_carried(router.kept, router.carried, router.by_slot, made, combined)
        if self._reflex is not None:
            self._routed = Routed(router.kept + router.carried, combined)

    def tell(self, seen: Seen) -> Seen:
        seen = self._questions.tell(super().tell(seen))
        if self._routed is None:
            return seen
        return replace(seen, routed=seen.routed | {self._step.id: self._routed})

    def _stays(self, rows: Batches) -> Iterator[pa.RecordBatch]:
        """The rows that go to hosts as always. When all have come, burst workers get the others."""
        yield from rows if self._questions.segment.maps else self.router.through(rows)
        at_once = self._questions.at_once
        if self._reflex is not None:
            at_once = max(at_once, self._reflex.at_once(self.router.carried))
        # Which rows are set aside depends on what they hold, so that a retried task does the same.
        parts = cut_evenly(self.router.by_key(), at_once)
        if parts:
            _ = self._form  # for the threads that take answers
            self._asked = self._questions.ask(parts, self._taken)

    def _send_made(self, asked: Invocations[Made]) -> CarriedTally:
        """Wait for burst workers, and bring what was made of the rows to the hosts; gives its count."""
        tally = CarriedTally(self._step)
        channels = self._open(self._delivery.channels(self._routes, 1))
        for _, made in self._questions.settled(asked, self._alone):
            self._delivery.work.late(self._step, [(0, rows) for rows in made.late])
            for outgoing in made.sent:
                channels.send(outgoing, tally)
        channels.end(self._form[0], self._delivery.input.whole_rows)
        return tally

    def _taken(self, answer: WorkerAnswer) -> Made:
        """An answer, if it is what the hosts of the step take."""
        plan, (kind, columns) = self._step.plan, self._form
        if answer.batches and answer.kind != kind:
            raise ProtocolError(f"a burst worker gave {answer.kind} instead of {kind}")
        sent, late = _columns(answer.batches), _columns(answer.late)
        if (columns and sent - {columns}) or late - {tuple(plan.inputs[0].names)}:
            raise ProtocolError(f"a burst worker gave other columns than step {self._step.id} has")
        return Made(list(answer.outgoing(plan)), answer.late)

    def _alone(self, request: Request) -> Made:
        """What a burst worker should have made."""
        work, step, rows = self._delivery.work, self._step, iter(request.batches)
        for before in self._questions.segment.maps:
            rows = work.mapped(before, rows)
        sent: list[Outgoing] = []
        work.send(step, self._sender(), [work.fit(step, 0, rows)], sent.append)
        return Made(sent)

    @cached_property
    def _form(self) -> tuple[str, tuple[str, ...]]:
        """What hosts are sent: its kind, and its columns where a sender of no rows tells them."""
        schema, sender = self._step.plan.inputs[0], self._sender()
        none = [pa.nulls(0, field.type) for field in schema]
        sent = list(sender.add(0, pa.RecordBatch.from_arrays(none, schema=schema)))
        kind, rest = sender.finish()
        sent += rest
        return kind, tuple(sent[0].batch.schema.names) if sent else ()

    def _sender(self) -> Sender:
        return self._step.plan.sender(self._questions.time, two_stage=True)


def _columns(batches: Iterable[pa.RecordBatch]) -> set[tuple[str, ...]]:
    return {tuple(batch.schema.names) for batch in batches}
