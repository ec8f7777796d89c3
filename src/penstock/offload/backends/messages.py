"""Requests to functions and their answers: Arrow streams, with what they are about in the schema.

A request has rows as they enter a segment, and names the steps to run on them, the epoch's time and
the flow. An answer has what a sender of two stages makes of them, and, in a stream of its own behind
it, the rows that were too late for the keyed step, as the step would have taken them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from penstock import codec
from penstock.errors import ProtocolError
from penstock.offload.backends.port import FunctionFailed
from penstock.operators.operator import EpochTime, Outgoing, StepPlan
from penstock.plan.steps import FlowPlan, KeyedStep, Step

T = TypeVar("T")

_ABOUT = b"penstock"


@dataclass(frozen=True)
class Request:
    """What one function shall do."""

    id: str
    """Names the request within its run; the answer repeats it."""
    steps: tuple[str, ...]
    """Stateless steps, and perhaps a keyed one behind them, by their ids."""
    time: EpochTime
    flow: str
    """The mark of the flow: a function that was packed with another one must not answer."""
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def to_bytes(self) -> bytes:
        return _stream(self.batches, _Asked(self.id, self.steps, self.flow, self.time))

    @staticmethod
    def from_bytes(body: bytes) -> Request:
        asked, batches = _read(pa.BufferReader(body), _Asked)
        return Request(asked.id, asked.segment, asked.time, asked.flow, batches)


@dataclass(frozen=True)
class FunctionAnswer:
    """What a function gives back."""

    id: str
    kind: str
    """Of the batches: ROWS or PARTIALS. Where a segment has no keyed step they are its output."""
    batches: tuple[pa.RecordBatch, ...] = ()
    late: tuple[pa.RecordBatch, ...] = ()
    """Rows that came behind the keyed step's watermark."""

    def outgoing(self, plan: StepPlan) -> Iterator[Outgoing]:
        """The batches, ready to be sent to the hosts of the segment's keyed step."""
        return (Outgoing(batch, plan.sent_keys(batch).hashes) for batch in self.batches)

    def to_bytes(self) -> bytes:
        sent = _stream(self.batches, _Answered(self.id, self.kind, bool(self.late)))
        return sent + _stream(self.late, {}) if self.late else sent

    @staticmethod
    def from_bytes(body: bytes, request: Request) -> FunctionAnswer:
        """The answer to a request; `FunctionFailed` if it is none."""
        try:
            source = pa.BufferReader(body)
            about, batches = _read(source, _Answered)
            late = _read(source, dict)[1] if about.late else ()
        except (ProtocolError, pa.ArrowException, OSError, ValueError) as broken:
            raise FunctionFailed(f"a function's answer cannot be read: {broken}") from broken
        if about.id != request.id:
            raise FunctionFailed(f"request {request.id} got the answer to {about.id}")
        return FunctionAnswer(about.id, about.kind, batches, late)


@dataclass(frozen=True)
class _Asked:
    """What a request is about."""

    id: str
    segment: tuple[str, ...]
    flow: str
    time: EpochTime


@dataclass(frozen=True)
class _Answered:
    """What an answer is about."""

    id: str
    kind: str
    late: bool
    """Whether a stream of late rows follows."""


@dataclass(frozen=True)
class Requests:
    """What the requests of one task have in common: which steps, when, of which flow.

    >>> from penstock.plan.steps import MapStep, SourcePlan
    >>> schema = pa.schema([("n", pa.int64())])
    >>> step = MapStep("map-1", lambda batch: batch, schema, schema)
    >>> flow = FlowPlan((SourcePlan(schema),), (step,))
    >>> requests = Requests.of(flow, [step], EpochTime(7, 0), "7.0.2")
    >>> [request] = requests.cut([pa.record_batch({"n": [1, 2]}, schema)], limit=None)
    >>> request.id, request.rows, Request.from_bytes(request.to_bytes()) == request
    ('7.0.2-0', 2, True)
    """

    steps: tuple[str, ...]
    time: EpochTime
    flow: str
    name: str
    """Unique among all segments and attempts of all tasks of a run: ids begin with it."""

    @staticmethod
    def of(flow: FlowPlan, steps: Sequence[Step], time: EpochTime, name: str) -> Requests:
        return Requests(tuple(step.id for step in steps), time, flow_mark(flow), name)

    def one(self, number: int, batches: Sequence[pa.RecordBatch]) -> Request:
        """One request, however large."""
        id = f"{self.name}-{number}"
        return Request(id, self.steps, self.time, self.flow, tuple(batches))

    def cut(
        self, batches: Sequence[pa.RecordBatch], limit: int | None, first: int = 0
    ) -> list[Request]:
        """All rows in as many requests as it takes for none to have more bytes than `limit`.

        They are numbered from `first`. A row that is larger than the limit is a `FunctionFailed`.
        """
        return [
            self.one(first + number, part)
            for number, part in enumerate(self._parts(list(batches), limit))
        ]

    def _parts(
        self, batches: list[pa.RecordBatch], limit: int | None
    ) -> Iterator[list[pa.RecordBatch]]:
        if limit is None or len(self.one(2**31, batches).to_bytes()) <= limit:
            yield batches
        elif len(batches) > 1:
            half = len(batches) // 2
            yield from self._parts(batches[:half], limit)
            yield from self._parts(batches[half:], limit)
        elif batches and batches[0].num_rows > 1:
            half = batches[0].num_rows // 2
            yield from self._parts([batches[0].slice(0, half)], limit)
            yield from self._parts([batches[0].slice(half)], limit)
        else:
            raise FunctionFailed(
                f"a single row makes a request of more than {limit} bytes", failure="too_large"
            )


def flow_mark(flow: FlowPlan) -> str:
    """A short text that is the same for the same flow: by its steps and columns, not by user code."""
    told = [
        [step.id, str(step.plan) if isinstance(step, KeyedStep) else "", _columns(step.output)]
        for step in flow.steps
    ]
    sources = [_columns(source.schema) for source in flow.sources]
    return hashlib.sha256(json.dumps([sources, told]).encode()).hexdigest()[:16]


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def _stream(batches: Sequence[pa.RecordBatch], about: object) -> bytes:
    schema = batches[0].schema if batches else pa.schema([])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata({_ABOUT: codec.encode(about)})) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _read(source: pa.NativeFile, kind: type[T]) -> tuple[T, tuple[pa.RecordBatch, ...]]:
    """What a stream is about, and its batches."""
    with pa.ipc.open_stream(source) as reader:
        about = codec.decode((reader.schema.metadata or {}).get(_ABOUT, b""), kind)
        batches = tuple(batch.replace_schema_metadata(None) for batch in reader)
    return about, batches
