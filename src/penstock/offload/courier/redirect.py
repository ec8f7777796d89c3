"""Redirect and merge: part of the rows of a keyed step go to functions, what they make of them to hosts.

A task has two channels to each host then. The first brings the rows that stay, as always. The second
brings the partial states of the rows that were set aside: those that functions made, and those that
the courier made itself where a function gave no answer in time. So each channel always brings the same
rows, whatever becomes of functions, and a host that took in one of them can take the other from a
later try of the task. A task that has set nothing aside closes both with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.courier.exchange import Exchange, Late
from penstock.courier.tally import Tally
from penstock.courier.trouble import Trouble
from penstock.errors import ProtocolError
from penstock.faults import point
from penstock.offload.backends.messages import WorkerAnswer
from penstock.offload.courier.invocations import Portion, cut_evenly
from penstock.offload.courier.questions import Asked, Asking
from penstock.offload.courier.report import Offloaded, Routed
from penstock.offload.courier.router import Router
from penstock.operators.operator import PARTIALS, Answer, Outgoing, Sender
from penstock.plan.epoch import StepRoutes
from penstock.plan.steps import KeyedStep


@dataclass(frozen=True)
class Made:
    """What was made of one portion of the rows."""

    sent: list[Outgoing]
    """For the hosts."""
    late: Late

    @property
    def records(self) -> int:
        return sum(outgoing.batch.num_rows for outgoing in self.sent)


class Redirect:
    """Takes rows of one task out of the way to a keyed step, to functions and back."""

    def __init__(self, asking: Asking, step: KeyedStep, trouble: Trouble) -> None:
        reflex, task = asking.offload.reflex, asking.task
        self._reflex = reflex and reflex.of(task.partition, asking.plan.partitions)
        self.router = Router(asking.segment, asking.offload, self._reflex)
        self.facts: list[Offloaded] = []
        self._asking, self._step, self._trouble = asking, step, trouble
        self.routed: Routed | None = None
        """What came by, where that is to be told."""
        self._asked: Asked[Made] | None = None

    @property
    def early(self) -> bool:
        """Whether rows leave before the stateless steps in front of the keyed one."""
        return bool(self._asking.segment.maps)

    def stay(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Of rows that came to the keyed step those that go to its hosts as always."""
        return batches if self.early else self.router.through(batches)

    def ask(self) -> None:
        """All rows have come: let functions work on those that were set aside."""
        at_once = self._asking.at_once
        if self._reflex is not None:
            at_once = max(at_once, self._reflex.at_once(self.router.carried))
        parts = cut_evenly(self.router.by_key(), at_once)
        if parts:
            _ = self._form  # for the threads that take answers
            self._asked = Asked(self._asking, parts, self._taken)

    @property
    def used(self) -> bool:
        """Whether any row was set aside: by what rows hold, so that a retried task does the same."""
        return self._asked is not None

    def deliver(self, beside: Exchange) -> Late:
        """Wait for functions, and bring what was made of the rows to the hosts; gives the late ones."""
        assert self._asked is not None
        late: Late = []
        records = 0
        for made, by_function in self._asked.settled(self._alone):
            late += made.late
            records += made.records * by_function
            for outgoing in made.sent:
                beside.send(*outgoing)
        self.facts.append(self._asked.facts(records))
        beside.end(self._form[0])
        return late

    def count(self, tally: Tally, made: Tally | None, kind: str) -> None:
        """Tell a tally of what stayed, sent as this kind, also what was set aside."""
        router = self.router
        combined = kind == PARTIALS
        if made is not None:
            tally.add_carried(router.kept, router.carried, router.by_slot, made, combined)
        if self._reflex is not None:
            self.routed = Routed(router.kept + router.carried, combined)

    def _taken(self, answer: WorkerAnswer) -> Made:
        """An answer, if it is what the hosts of the step take."""
        plan, (kind, columns) = self._step.plan, self._form
        if answer.batches and answer.kind != kind:
            raise ProtocolError(f"a function gave {answer.kind} instead of {kind}")
        sent, late = _columns(answer.batches), _columns(answer.late)
        if (columns and sent - {columns}) or late - {tuple(plan.inputs[0].names)}:
            raise ProtocolError(f"a function gave other columns than step {self._step.id} has")
        return Made(list(answer.outgoing(plan)), [(0, rows) for rows in answer.late])

    def _alone(self, portion: Portion) -> Made:
        """What a function should have made."""
        batches: Iterable[pa.RecordBatch] = portion.batches
        for step in self._asking.segment.maps:
            batches = self._trouble.mapped(step, batches)
        sender = self._sender()
        sent: list[Outgoing] = []
        for batch in batches:
            sent += sender.add(0, self._trouble.without_unfit(self._step, 0, batch))
        sent += sender.finish()[1]
        return Made(sent, sender.late)

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
        return self._step.plan.sender(self._asking.time, two_stage=True)


def _columns(batches: Iterable[pa.RecordBatch]) -> set[tuple[str, ...]]:
    return {tuple(batch.schema.names) for batch in batches}


def through_hosts_and_functions(
    step: KeyedStep,
    redirect: Redirect,
    exchange: Exchange,
    second: Callable[[], Exchange],
    batches: Iterable[pa.RecordBatch],
    routes: StepRoutes,
    trouble: Trouble,
    meanwhile: Callable[[Late], None],
) -> list[pa.RecordBatch]:
    """What `through_hosts` does, with the help of functions: `second` opens the second channels."""
    sender = step.plan.sender(routes.time, routes.two_stage)
    point("courier.sender", **exchange.where, sender=sender)
    for stays in redirect.stay(trouble.without_unfit(step, 0, batch) for batch in batches):
        for outgoing in sender.add(0, stays):
            exchange.send(*outgoing)
    redirect.ask()
    kind, rest = sender.finish()
    for outgoing in rest:
        exchange.send(*outgoing)
    point("courier.sent", **exchange.where)
    exchange.end(kind, alone=not redirect.used)
    if redirect.used:
        with second() as beside:
            late = redirect.deliver(beside)
            redirect.count(exchange.tally, beside.tally, kind)
            meanwhile(sender.late + late)
            answer = Answer.joined([exchange.answer(), beside.answer()])
    else:
        redirect.count(exchange.tally, None, kind)
        meanwhile(sender.late)
        answer = exchange.answer()
    point("courier.closed", **exchange.where)
    trouble.letters.extend(answer.dead)
    return answer.batches
