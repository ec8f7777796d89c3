"""The streams of one task, by number: the sources', then what each step gives."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.courier.witness import Witness
from penstock.plan.steps import FlowPlan


class Streams:
    """Hands each step what it reads. Rows are read once from Spark, as they are asked for."""

    def __init__(self, flow: FlowPlan, batches: Iterator[pa.RecordBatch], witness: Witness) -> None:
        self._tagged = flow.tagged
        self._batches = batches
        self._waiting: list[deque[pa.RecordBatch]] = [deque() for _ in flow.sources]
        self._streams: list[Iterable[pa.RecordBatch]] = [
            witness.watch(number, self._source(number)) for number in range(len(flow.sources))
        ]
        reads = (stream for step in range(len(flow.steps)) for stream in flow.reads(step))
        self._readers = Counter(reads)
        if not flow.steps:
            self._readers[0] = 1

    def read(self, stream: int) -> Iterable[pa.RecordBatch]:
        """All batches of a stream; each reader gets them all."""
        found = self._streams[stream]
        if self._readers[stream] > 1 and not isinstance(found, list):
            found = self._streams[stream] = list(found)
        return found

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """The next step's output."""
        self._streams.append(batches)

    def last(self) -> Iterable[pa.RecordBatch]:
        """What leaves the flow."""
        return self._streams[-1]

    def _source(self, number: int) -> Iterator[pa.RecordBatch]:
        """The batches of one source; those of others that come in between wait."""
        waiting = self._waiting[number]
        while True:
            while waiting:
                yield waiting.popleft()
            batch = next(self._batches, None)
            if batch is None:
                return
            if self._tagged is None:
                yield batch
                continue
            for source, rows in self._tagged.unpack(batch):
                self._waiting[source].append(rows)
