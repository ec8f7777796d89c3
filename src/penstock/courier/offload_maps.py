"""Stateless steps that hand part of their rows to functions: what comes back takes their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.courier.asking import Asked, Asking
from penstock.courier.invocations import cut_evenly, rows_between
from penstock.courier.offloaded import Offloaded
from penstock.courier.trouble import Trouble
from penstock.errors import ProtocolError
from penstock.functions.messages import FunctionAnswer
from penstock.operators.operator import ROWS


class MapOffload:
    """Takes one task's rows through the steps of a segment that has no keyed one.

    The rows are cut into runs, one for each function; the end of each run goes to it.
    """

    def __init__(self, asking: Asking, trouble: Trouble) -> None:
        self.facts: list[Offloaded] = []
        self._asking, self._trouble = asking, trouble
        self._share = float(np.mean(asking.offload.shares))

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in their order. Reads everything before it gives the first."""
        runs = cut_evenly([batch for batch in batches if batch.num_rows], self._asking.at_once)
        parted = [_parted(run, self._share) for run in runs]
        ends = [end for _, end in parted if end]
        asked = Asked(self._asking, ends, self._taken) if ends else None
        own = [list(self._mapped(begin)) for begin, _ in parted]
        if asked is None:
            yield from (batch for some in own for batch in some)
            return
        settled, records = asked.settled(lambda portion: list(self._mapped(portion.batches))), 0
        portions = iter(asked.by_part)
        for (_, end), some in zip(parted, own, strict=True):
            yield from some
            for _ in next(portions) if end else ():
                made, by_function = next(settled)
                records += by_function * sum(batch.num_rows for batch in made)
                yield from made
        self.facts.append(asked.facts(records))

    def _mapped(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for step in self._asking.segment.maps:
            batches = self._trouble.mapped(step, batches)
        return batches

    def _taken(self, answer: FunctionAnswer) -> list[pa.RecordBatch]:
        """An answer, if it is what the last step gives."""
        output = self._asking.segment.maps[-1].output
        fits = answer.kind == ROWS and all(batch.schema.equals(output) for batch in answer.batches)
        if not fits:
            raise ProtocolError("a function gave rows that are none of the step's")
        return list(answer.batches)


def _parted(
    run: list[pa.RecordBatch], share: float
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The rows of a run that stay, and those that a function gets."""
    rows = sum(batch.num_rows for batch in run)
    stay = rows - round(rows * share)
    return rows_between(run, 0, stay), rows_between(run, stay, rows)
