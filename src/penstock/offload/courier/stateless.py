"""Stateless steps that hand part of their rows to functions: what comes back takes their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.offload.backends.messages import WorkerAnswer
from penstock.offload.courier.invocations import cut_evenly, rows_between
from penstock.offload.courier.questions import Asked, Asking
from penstock.offload.courier.report import Offloaded
from penstock.offload.courier.stateless_work import MapSegment
from penstock.operators.operator import ROWS
from penstock.plan.epoch import Offload


class MapOffload:
    """Takes one task's rows through the steps of a segment that has no keyed one.

    The rows are cut into runs, one for each function; the end of each run goes to it.
    """

    def __init__(self, asking: Asking, segment: MapSegment) -> None:
        self.facts: list[Offloaded] = []
        self._asking, self._segment = asking, segment

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in their order. Reads everything before it gives the first."""
        segment, filled = self._segment, [batch for batch in batches if batch.num_rows]
        rows = sum(batch.num_rows for batch in filled)
        segment.came(rows)
        offload, partitions = self._asking.offload, self._asking.plan.partitions
        share, at_once = wanted(offload, self._asking.task.partition, partitions, rows)
        parted = [_parted(run, share) for run in cut_evenly(filled, at_once)]
        ends = [end for _, end in parted if end]
        asked = Asked(self._asking, ends, self._taken) if ends else None
        own = [segment.made_of(begin) for begin, _ in parted]
        if asked is None:
            yield from (batch for some in own for batch in some)
            return
        settled, records = asked.settled(lambda portion: segment.made_of(portion.batches)), 0
        portions = iter(asked.by_part)
        for (_, end), some in zip(parted, own, strict=True):
            yield from some
            for _ in next(portions) if end else ():
                made, by_function = next(settled)
                records += by_function * sum(batch.num_rows for batch in made)
                yield from made
        self.facts.append(asked.facts(records))

    def _taken(self, answer: WorkerAnswer) -> list[pa.RecordBatch]:
        """An answer, if it is what the last step gives."""
        output = self._asking.segment.maps[-1].output
        fits = answer.kind == ROWS and all(batch.schema.equals(output) for batch in answer.batches)
        if not fits:
            raise ProtocolError("a function gave rows that are none of the step's")
        return list(answer.batches)


def wanted(offload: Offload, partition: int, partitions: int, rows: int) -> tuple[float, int]:
    """What part of a courier's rows functions get, and how many of them share it.

    >>> import numpy as np
    >>> wanted(Offload(np.array([0.0, 0.75]), functions=6, deadline_ms=500), 1, 2, rows=90)
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
    """The rows of a run that stay, and those that a function gets."""
    rows = sum(batch.num_rows for batch in run)
    stay = rows - round(rows * share)
    return rows_between(run, 0, stay), rows_between(run, stay, rows)
