"""A keyed step on one host, cut into parts that several workers process in parallel.

`PartedOperator` is an `Operator` like any other: the host machine does not see the parts. Inside are one
operator of the step per part, each with its own table and its own slots (slot % parts), and a runtime
whose workers apply them. Rows of a key stay in order, because all of them are in one part and only one
worker at a time works on a part.

For a chain of several steps in one host, `stages` returns the runtime operators of this step. They take
`ChannelChunk`s and return `Answer`s. The chain has its own runtime, opens and closes the step's epochs
between runs, and undoes a failed run with `table.savepoint` and `table.undo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pyarrow as pa

from penstock.host.chunks import ChannelChunk, ChannelEnd, ForAllParts, Rounded, Work, joined
from penstock.host.part_stages import Cut, Gather, Parts, Whole
from penstock.operators.operator import Answer, EpochTime, Operator
from penstock.operators.places import Places
from penstock.runtime.cores import WorkersByLoad
from penstock.runtime.operators import ChainOperator as Stage
from penstock.runtime.runtime import Runtime
from penstock.state.keys.codec import Keys
from penstock.state.table.parted import PartedTable, StepTable

_CHUNKS_PER_WORKER = 4
"""Largest number of chunks of a channel per worker: enough for workers to finish at about the same time."""
_CHUNKS = 8
"""Number of chunks of rows after which a part works on them before the channel ends."""


class PartedOperator:
    """One step on one host in parts; see `operators.operator.Operator` for the protocol.

    `make` makes an empty operator of the step, once for each part. So a processor's `init` and `close`
    are called once for each part. A channel is cut by part in chunks of `chunk_rows`, or larger ones if
    there are enough for all workers, and then applied part by part. The rows of the answer are in order
    per key only. Where the step is ordered they come with their places, and the courier sorts them.
    """

    table: StepTable
    output: pa.Schema

    def __init__(
        self,
        make: Callable[[], Operator],
        parts: int,
        *,
        workers: int,
        chunk_rows: int,
        schedule: str = "ct",
        by_load: WorkersByLoad | None = None,
    ) -> None:
        """`by_load` chooses how many of the workers are used."""
        self.parts = tuple(make() for _ in range(parts))
        first = self.parts[0]
        self.output, self.ordered, self.divisible = first.output, first.ordered, first.divisible
        self.by_key, self.portable = first.by_key, first.portable
        tables = [part.table for part in self.parts]
        self.table = tables[0] if parts == 1 else PartedTable(tables)
        self._chunk_rows, self._chunks = chunk_rows, workers * _CHUNKS_PER_WORKER
        self.workers = workers if parts > 1 else 1
        self.engaged: Callable[[], int] = lambda: (
            self.workers if by_load is None else min(self.workers, by_load.workers)
        )
        """Returns the number of workers in use. A chain of steps replaces it by its own."""
        stages = self.stages()
        self._rounds = Runtime(stages, workers=self.workers, schedule=schedule, by_load=by_load)
        self._rounded: list[Rounded] = []
        if parts > 1:
            self._gather = Gather(parts, chunk_rows * _CHUNKS if self.divisible else None)
            stages.insert(1, self._gather)
        self._runtime = Runtime(stages, workers=self.workers, schedule=schedule, by_load=by_load)

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """Return the keys of a channel's batches."""
        return self.parts[0].keys(kind, batches)

    @property
    def due_columns(self) -> tuple[str, ...]:
        """Names of the columns that `due` may return."""
        return self.parts[0].due_columns

    def due(self, time: EpochTime) -> dict[str, int]:
        """Return the due times that `fire` will use: column -> greatest value that is due at this time."""
        return self.parts[0].due(time)

    def begin(self, time: EpochTime) -> None:
        """Begin a round in every part."""
        for part in self.parts:
            part.begin(time)

    def fire(self) -> Answer:
        """Fire due entries in every part, or, on an exception, in none."""
        return self._whole_or_not([ForAllParts(lambda part: part.fire())])

    def open(self, time: EpochTime) -> Answer:
        """Begin an epoch and fire due entries in every part, or, on an exception, in none."""
        return self._whole_or_not([ForAllParts(lambda part: part.open(time))])

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Apply one closed channel, in all parts or in none."""
        if len(self.parts) == 1:
            return self.parts[0].apply(kind, batches, places)
        chunk = ChannelChunk(kind, batches, places)
        if not chunk.rows:
            # Any part can check an empty channel.
            return chunk.on(self.parts[0])
        self._gather.forget()
        rows = max(self._chunk_rows, chunk.rows // self._chunks)
        return self._whole_or_not([*chunk.cut(rows), ChannelEnd()])

    def close(self) -> Answer:
        """Return the once-per-round output of every part."""
        if len(self.parts) == 1:
            return self.parts[0].close()
        return self._run([ForAllParts(lambda part: part.close())])

    # -- rounds of a live run, as a stream

    def submit(self, work: Work) -> None:
        """Begin a round, of rows or of work on all parts. Each part does its rounds in order.

        On an error all rounds that are not finished are lost, and the table must be rolled back.
        """
        if not self._rounds.is_open:
            self._rounds.open(self._rounded.append)
        self._rounds.submit(work)

    def drain(self) -> list[Rounded]:
        """Wait until all rounds are finished, and return their results in the order in which they began."""
        if self._rounds.is_open:
            self._rounds.drain()
        rounded = list(self._rounded)
        self._rounded.clear()
        return rounded

    def abandon(self) -> None:
        """Drop all rounds that are not finished. The table must then be rolled back."""
        if self._rounds.is_open:
            self._rounds.stop()
        self._rounded.clear()

    def rollback(self) -> None:
        """Return to the newest durable version in every part."""
        for part in self.parts:
            part.rollback()
        self.table.rollback()

    def end(self) -> None:
        """End the workers: no more channels will come."""
        self._runtime.close()
        self._rounds.close()

    def shutdown(self) -> None:
        """End the workers, and let the user code of every part close its resources."""
        self.end()
        with ExitStack() as stack:
            for part in reversed(self.parts):
                stack.callback(part.shutdown)

    def stages(self) -> list[Stage]:
        """Return the runtime operators that apply this step: `ChannelChunk`s in, `Answer`s out.

        A chunk, or a `ForAllParts`, results in one answer, or in none if that would be empty.
        """
        if len(self.parts) == 1:
            return [Whole(self.parts[0])]
        return [Cut(self.parts), Parts(self.parts)]

    def _whole_or_not(self, items: Sequence[Work | ChannelEnd]) -> Answer:
        mark = self.table.savepoint()
        try:
            return self._run(items)
        except BaseException:
            self.table.undo(mark)
            raise

    def _run(self, items: Sequence[Work | ChannelEnd]) -> Answer:
        return joined(item for item in self._runtime.run(items) if isinstance(item, Answer))
