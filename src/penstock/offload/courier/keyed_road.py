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
        slots = self._routes.routes.slots
        self._tally: CarriedTally = CarriedTally(step, self._routes.watched, slots)
        reflex = questions.offload.reflex
        self._reflex = reflex and reflex.of(delivery.task.partition, delivery.plan.partitions)
        self._routers = [
            Router(questions.segment, questions.offload, self._reflex, slots=slots)
            for _ in self.reads
        ]
        """Set rows of each input aside: before the segment's stateless steps, if it has any."""
        self._questions, self._maker = questions, Maker(questions.segment)
        self._asked: Invocations[Made] | None = None
        self._routed: Routed | None = None

    @property
    def router(self) -> Router:
        """The router of the first input."""
        return self._routers[0]

    def send(self, inputs: Sequence[Batches]) -> None:
        work, step = self._delivery.work, self._step
        kind = self._send(
            [self._stays(n, work.fit(step, n, rows)) for n, rows in enumerate(inputs)]
        )
        self._end(kind, alone=self._asked is None)
        kept, carried = (
            sum(getattr(router, count) for router in self._routers) for count in ("kept", "carried")
        )
        combined = kind == PARTIALS
        if self._asked is not None:
            made = self._send_made(self._asked)
            self._tally.add_carried(kept, carried, self.router.by_slot, made, combined)
        if self._reflex is not None:
            self._routed = Routed(kept + carried, combined)

    def tell(self, seen: Seen) -> Seen:
        seen = self._questions.tell(super().tell(seen))
        if self._routed is None:
            return seen
        return replace(seen, routed=seen.routed | {self._step.id: self._routed})

    def _stays(self, input: int, rows: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an input that go to hosts directly. After those of the last input, send the
        others to burst workers."""
        routers, inputs = self._routers, self._step.plan.all_inputs
        yield from rows if self._questions.segment.maps else routers[input].through(rows)
        if input < len(routers) - 1:
            return
        at_once = self._questions.at_once
        if self._reflex is not None:
            at_once = max(at_once, self._reflex.at_once(sum(r.carried for r in routers)))
        # Rows are set aside by their content, so that a retried task does the same.
        aside = [
            inputs.pack(n, batch)
            for n, router in enumerate(routers)
            for batch in (router.by_key() if len(routers) == 1 else router.aside)
        ]
        parts = cut_evenly(aside, at_once)
        if parts:
            _ = self._maker.kind  # computed now, before other threads use it
            self._asked = self._questions.ask(parts, self._maker.taken)

    def _send_made(self, asked: Invocations[Made]) -> CarriedTally:
        """Wait for burst workers, and send the partial states to the hosts. Returns their tally."""
        tally = CarriedTally(self._step, slots=self._routes.routes.slots)
        channels = self._open(self._delivery.channels(self._routes, 1))
        work = self._delivery.work
        for _, made in self._questions.settled(
            asked, lambda request: self._maker.alone(request, work)
        ):
            work.late(self._step, made.late)
            for outgoing in made.sent:
                channels.send(outgoing, tally)
        channels.end(self._maker.kind, self._delivery.input.whole_rows)
        return tally
