"""Trials (see `trials`) of joins: their two inputs are packed into one stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.operators.join.plan import JoinPlan
from penstock.operators.operator import EpochTime, OnError, Operator, Outgoing, StepPlan, Unfit
from penstock.operators.tagged import INPUT, TaggedSchema
from penstock.state.keys.codec import Keys
from tests.operators.trials import MISHAPS, Epoch, Row

Tagged = tuple[int, Row]
"""The number of an input, and a row of it."""


class OneStream(StepPlan):
    """A join as a step with one input, which has the rows of both sides, as in Spark."""

    def __init__(self, plan: JoinPlan) -> None:
        self.plan = plan
        self.tagged = TaggedSchema(plan.inputs)
        self.inputs = (self.tagged.schema,)
        self.key_names, self.codec, self.output = plan.key_names, plan.codec, plan.output
        self.merges, self.has_timers = plan.merges, plan.has_timers

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        return None

    def sender(self, time: EpochTime, two_stage: bool = False) -> OneSender:
        return OneSender(self, time)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        return self.plan.sent_keys(batch)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        return self.plan.operator(slots, step_id, on_error, ordered)

    def row(self, tagged: Tagged) -> Row:
        """The row in the schema of the one stream."""
        input, row = tagged
        columns = [None] * (len(self.tagged.schema) - 1)
        names = self.plan.inputs[input].names
        for place, name in zip(self.tagged.places(input), names, strict=True):
            columns[place] = row[name]
        return {INPUT: input} | {f"_{i}": value for i, value in enumerate(columns)}


class OneSender:
    combines = False

    def __init__(self, stream: OneStream, time: EpochTime) -> None:
        self._stream, self._sender = stream, stream.plan.sender(time)
        self.late = self._sender.late

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        for side, rows in self._stream.tagged.unpack(batch):
            unfit = self._stream.plan.unfit(side, rows)
            if unfit is not None:
                rows = rows.filter(pa.array(~unfit.rows))
            yield from self._sender.add(side, rows)

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return self._sender.finish()


def in_one_stream(stream: OneStream, epochs: list[Epoch]) -> list[Epoch]:
    """Convert epochs of tagged rows to epochs of the one stream."""
    return [
        Epoch(
            [[stream.row(row) for row in rows] for rows in epoch.channels],
            epoch.watermark_ms,
            epoch.now_ms,
            epoch.final,
            epoch.mishap,
        )
        for epoch in epochs
    ]


def rows_of(epoch: Epoch) -> list[Tagged]:
    """All tagged rows of an epoch."""
    return [row for rows in epoch.channels for row in rows]


def tagged_rows(left: st.SearchStrategy[Row], right: st.SearchStrategy[Row]) -> Any:
    """Rows of either side."""
    return st.tuples(st.just(0), left) | st.tuples(st.just(1), right)


@st.composite
def timed_epochs(draw: st.DrawFn, rows: Any, steps: st.SearchStrategy[int]) -> list[Epoch]:
    """Epochs with rising watermark and time of day; the last one ends the input."""
    epochs, watermark, now = [], None, 0
    for left in reversed(range(draw(st.integers(1, 5)))):
        channels = draw(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3))
        mishap = draw(st.sampled_from(MISHAPS))
        epochs.append(Epoch(channels, watermark, now, left == 0, mishap))
        step = draw(st.none() | steps)
        if step is not None:
            watermark = (watermark or -2) + step
        now += draw(steps)
    return epochs
