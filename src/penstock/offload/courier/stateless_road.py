"""Roads of segments without a keyed step, run by the courier alone or together with burst workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.courier.delivery import Delivery
from penstock.courier.roads import Batches, Road
from penstock.errors import ProtocolError
from penstock.offload.backends.messages import WorkerAnswer, cut_evenly, rows_between
from penstock.offload.courier.questions import Questions
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import ROWS
from penstock.plan.epoch import Offload
from penstock.wire.report import MapWork, Seen


class SegmentRoad(Road):
    """The road of a segment without a keyed step: the courier runs and times its steps."""

    def __init__(self, delivery: Delivery, number: int, segment: Segment) -> None:
        super().__init__(delivery, number)
        self._segment = segment
        self._timed = segment.id in delivery.plan.timed
        self.report_when = "answered" if self._timed else "never"
        self._came = self._done = 0
        self._useful_s = self._cpu_s = 0.0

    def send(self, inputs: Sequence[Batches]) -> None:
        (self._rows,) = inputs

    def answer(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            self._came += batch.num_rows
            yield from self._made([batch])

    def tell(self, seen: Seen) -> Seen:
        if not self._timed:
            return seen
        work = MapWork(
            *(self._came, self._done),
            *(round(seconds * 1000, 1) for seconds in (self._useful_s, self._cpu_s)),
        )
        return replace(seen, maps=seen.maps | {self._segment.id: work})

    def _made(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Run the steps on rows, in the courier."""
        rows, began = sum(batch.num_rows for batch in batches), time.perf_counter()
        cpu_began = time.thread_time()
        made = iter(batches)
        for step in self._segment.maps:
            made = self._delivery.work.mapped(step, made)
        output = list(made)
        self._done += rows
        self._useful_s += time.perf_counter() - began
        self._cpu_s += time.thread_time() - cpu_began
        return output


class SharedSegmentRoad(SegmentRoad):
    """The road of a segment without a keyed step, with a part of the rows done by burst workers.

    The rows are cut into runs, one per burst worker. The end of each run goes to its burst worker. The output
    takes the place of the input, so that rows stay in order.
    """

    def __init__(
        self, delivery: Delivery, number: int, segment: Segment, questions: Questions
    ) -> None:
        super().__init__(delivery, number, segment)
        self.report_when = "answered"
        self._questions = questions

    def answer(self) -> Iterator[pa.RecordBatch]:
        """Yield all output rows in order. Reads all input before it yields the first."""
        filled = [batch for batch in self._rows if batch.num_rows]
        rows = sum(batch.num_rows for batch in filled)
        self._came += rows
        partition, partitions = self._delivery.task.partition, self._delivery.plan.partitions
        share, at_once = wanted(self._questions.offload, partition, partitions, rows)
        runs = [_parted(run, share) for run in cut_evenly(filled, at_once)]
        ends = [end for _, end in runs if end]
        asked = self._questions.ask(ends, self._taken) if ends else None
        own = [self._made(begin) for begin, _ in runs]
        if asked is None:
            yield from (batch for some in own for batch in some)
            return
        settled = self._questions.settled(asked, lambda request: self._made(request.batches))
        for (_, end), some in zip(runs, own, strict=True):
            yield from some
            left = sum(batch.num_rows for batch in end)
            while left:
                request, made = next(settled)
                left -= request.rows
                yield from made

    def tell(self, seen: Seen) -> Seen:
        return self._questions.tell(super().tell(seen))

    def _taken(self, answer: WorkerAnswer) -> list[pa.RecordBatch]:
        """The rows of an answer. Raises an error if they do not have the last step's schema."""
        output = self._segment.maps[-1].output
        fits = answer.kind == ROWS and all(batch.schema.equals(output) for batch in answer.batches)
        if not fits:
            raise ProtocolError("a burst worker returned rows with the wrong schema")
        return list(answer.batches)


def wanted(offload: Offload, partition: int, partitions: int, rows: int) -> tuple[float, int]:
    """The fraction of a courier's rows for burst workers, and how many burst workers share it.

    >>> import numpy as np
    >>> wanted(Offload(np.array([0.0, 0.75]), workers=6, deadline_ms=500), 1, 2, rows=90)
    (0.75, 3)
    """
    share, at_once = offload.share_of(partition, partitions), offload.at_once(partition, partitions)
    if at_once == 0:
        return 0.0, 1
    if offload.reflex is None:
        return share, at_once
    reflex = offload.reflex.of(partition, partitions)
    share = max(share, reflex.share(rows))
    return share, max(at_once, reflex.at_once(round(share * rows)))


def _parted(
    run: list[pa.RecordBatch], share: float
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Split a run into the rows that stay, and those for a burst worker."""
    rows = sum(batch.num_rows for batch in run)
    stay = rows - round(rows * share)
    return rows_between(run, 0, stay), rows_between(run, stay, rows)
