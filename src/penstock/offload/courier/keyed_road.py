"""The road of a keyed step with burst workers: they turn a part of its rows into partial states for its
hosts.

A task then has two channels to each host. The first carries the rows that stay, as usual. The second
carries the partial states of the rows that were set aside. Burst workers make these, or the courier itself
if no answer comes in time. So each channel always carries the same rows, whatever happens to burst workers,
and a host that has taken in one of them can take the other from a retry of the task. A task that sets
nothing aside closes both with the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.courier.delivery import Delivery
from penstock.courier.roads import Batches, HostRoad
from penstock.offload.backends.messages import cut_evenly
from penstock.offload.courier.carried import CarriedTally
from penstock.offload.courier.partials import Made, Maker
from penstock.offload.courier.questions import Invocations, Questions
from penstock.offload.courier.router import Router
from penstock.operators.operator import PARTIALS
from penstock.plan.steps import KeyedStep
from penstock.wire.report import Routed, Seen


class BurstRoad(HostRoad):
    """The road of a keyed step that sends a part of its rows to burst workers."""

    def __init__(
        self, delivery: Delivery, number: int, step: KeyedStep, questions: Questions
    ) -> None:
        super().__init__(delivery, number, step)
        self._tally: CarriedTally = CarriedTally(step, self._routes.watched)
        reflex = questions.offload.reflex
        self._reflex = reflex and reflex.of(delivery.task.partition, delivery.plan.partitions)
        self.router = Router(questions.segment, questions.offload, self._reflex)
        """Sets rows aside: before the segment's stateless steps, if it has any."""
        self._questions, self._maker = questions, Maker(questions.segment)
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
        """Yield the rows that go to hosts directly. After the last, send the others to burst workers."""
        yield from rows if self._questions.segment.maps else self.router.through(rows)
        at_once = self._questions.at_once
        if self._reflex is not None:
            at_once = max(at_once, self._reflex.at_once(self.router.carried))
        # Rows are set aside by their content, so that a retried task does the same.
        parts = cut_evenly(self.router.by_key(), at_once)
        if parts:
            _ = self._maker.kind  # computed now, before other threads use it
            self._asked = self._questions.ask(parts, self._maker.taken)

    def _send_made(self, asked: Invocations[Made]) -> CarriedTally:
        """Wait for burst workers, and send the partial states to the hosts. Returns their tally."""
        tally = CarriedTally(self._step)
        channels = self._open(self._delivery.channels(self._routes, 1))
        work = self._delivery.work
        for _, made in self._questions.settled(
            asked, lambda request: self._maker.alone(request, work)
        ):
            work.late(self._step, [(0, rows) for rows in made.late])
            for outgoing in made.sent:
                channels.send(outgoing, tally)
        channels.end(self._maker.kind, self._delivery.input.whole_rows)
        return tally
