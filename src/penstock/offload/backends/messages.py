"""Requests to burst workers and their answers: Arrow streams with a JSON head in the schema.

A request has rows as they enter a segment (those of a join's two inputs are tagged), and names the steps to
run on them, the epoch's time and the flow. An answer has the partial states of these rows. Rows that were too
late for the keyed step follow in a separate stream, in the form in which the step reads them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from penstock import codec
from penstock.errors import ProtocolError
from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.code_mark import code_mark, penstock_version
from penstock.operators.operator import EpochTime, Outgoing, StepPlan
from penstock.plan.steps import FlowPlan, KeyedStep, Step

_HEAD = b"penstock"
_MARK = "_flow_mark"
"""Name of the attribute in which a plan keeps its mark."""
_Head = TypeVar("_Head")


@dataclass(frozen=True)
class _RequestHead:
    id: str
    segment: tuple[str, ...]
    flow: str
    time: EpochTime


@dataclass(frozen=True)
class _AnswerHead:
    id: str
    kind: str
    late: bool
    """Whether a stream of late rows follows."""
    cpu_ms: float = 0.0


@dataclass(frozen=True)
class Request:
    """A request to one burst worker."""

    id: str
    """Unique among all requests of a flow, whichever driver runs it; the answer repeats it."""
    steps: tuple[str, ...]
    """Ids of stateless steps, and of a keyed step behind them if there is one."""
    time: EpochTime
    flow: str
    """Mark of the flow. A burst worker that was packaged with other code refuses the request."""
    batches: tuple[pa.RecordBatch, ...]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def to_bytes(self) -> bytes:
        return _stream(self.batches, _RequestHead(self.id, self.steps, self.flow, self.time))

    @staticmethod
    def from_bytes(body: bytes) -> Request:
        head, batches = _read(pa.BufferReader(body), _RequestHead)
        return Request(head.id, head.segment, head.time, head.flow, batches)


@dataclass(frozen=True)
class WorkerAnswer:
    """The answer of a burst worker."""

    id: str
    kind: str
    """ROWS or PARTIALS. For a segment without a keyed step, the batches are its output rows."""
    batches: tuple[pa.RecordBatch, ...] = ()
    late: tuple[pa.RecordBatch, ...] = ()
    """Rows behind the keyed step's watermark."""
    cpu_ms: float = 0.0
    """CPU milliseconds of the burst worker for this request, on a whole core; 0 if unknown."""

    def outgoing(self, plan: StepPlan) -> Iterator[Outgoing]:
        """The batches, ready to be sent to the hosts of the segment's keyed step."""
        return (Outgoing(batch, plan.sent_keys(batch).hashes) for batch in self.batches)

    def to_bytes(self) -> bytes:
        sent = _stream(self.batches, _AnswerHead(self.id, self.kind, bool(self.late), self.cpu_ms))
        return sent + _stream(self.late, {}) if self.late else sent

    @staticmethod
    def from_bytes(body: bytes, request: Request) -> WorkerAnswer:
        """Decode an answer. Raises `WorkerFailed` if it is unreadable or belongs to another request."""
        try:
            source = pa.BufferReader(body)
            head, batches = _read(source, _AnswerHead)
            late = _read(source, dict)[1] if head.late else ()
        except (pa.ArrowException, OSError, ValueError, ProtocolError) as error:
            raise WorkerFailed(f"a burst worker's answer cannot be read: {error}") from error
        if head.id != request.id:
            raise WorkerFailed(f"request {request.id} got the answer to {head.id}")
        return WorkerAnswer(head.id, head.kind, batches, late, head.cpu_ms)


@dataclass(frozen=True)
class Requests:
    """The common parts of one task's requests: steps, time and flow.

    >>> from penstock.plan.steps import MapStep, SourcePlan
    >>> schema = pa.schema([("n", pa.int64())])
    >>> step = MapStep("map-1", lambda batch: batch, schema, schema)
    >>> flow = FlowPlan((SourcePlan(schema),), (step,))
    >>> requests = Requests.of(flow, [step], EpochTime(7, 0), "7.0.2")
    >>> [request] = requests.cut([[pa.record_batch({"n": [1, 2]}, schema)]], limit=None)
    >>> request.id.startswith("7.0.2."), request.rows, Request.from_bytes(request.to_bytes()) == request
    (True, 2, True)
    """

    steps: tuple[str, ...]
    time: EpochTime
    flow: str
    name: str
    """Prefix of request ids, unique among all segments and attempts of all tasks of all starts."""

    @staticmethod
    def of(flow: FlowPlan, steps: Sequence[Step], time: EpochTime, name: str) -> Requests:
        """Requests whose ids begin with `name`, which is unique within one start of the flow. A token is
        added: after a crash the next driver uses the same names for other rows."""
        unique = f"{name}.{secrets.token_hex(4)}"
        return Requests(tuple(step.id for step in steps), time, flow_mark(flow), unique)

    def one(self, number: int, batches: Sequence[pa.RecordBatch]) -> Request:
        """Make one request, however large."""
        id = f"{self.name}-{number}"
        return Request(id, self.steps, self.time, self.flow, tuple(batches))

    def cut(self, parts: Iterable[Sequence[pa.RecordBatch]], limit: int | None) -> list[Request]:
        """Make requests of all parts of the rows, in order. A part is split so that no request is larger than
        `limit` bytes. A single row that is larger gets its own request, which will be refused."""
        pieces = (piece for part in parts for piece in self._pieces(part, limit))
        return [self.one(number, piece) for number, piece in enumerate(pieces)]

    def _pieces(
        self, batches: Sequence[pa.RecordBatch], limit: int | None
    ) -> Iterator[Sequence[pa.RecordBatch]]:
        rows = sum(batch.num_rows for batch in batches)
        if limit is None or rows < 2 or len(self.one(2**31, batches).to_bytes()) <= limit:
            yield batches
        else:
            for half in cut_evenly(batches, 2):
                yield from self._pieces(half, limit)


def cut_evenly(batches: Sequence[pa.RecordBatch], parts: int) -> list[list[pa.RecordBatch]]:
    """Split rows into `parts` runs of nearly equal size, or fewer if there are fewer rows.

    >>> rows = pa.record_batch({"n": [1, 2, 3, 4, 5]})
    >>> [[b.num_rows for b in part] for part in cut_evenly([rows, rows.slice(0, 2)], 3)]
    [[2], [2], [1, 2]]
    >>> cut_evenly([], 3)
    []
    """
    total = sum(batch.num_rows for batch in batches)
    parts = min(parts, total)
    return [
        rows_between(batches, total * part // parts, total * (part + 1) // parts)
        for part in range(parts)
    ]


def rows_between(batches: Sequence[pa.RecordBatch], begin: int, end: int) -> list[pa.RecordBatch]:
    """The rows from index `begin` to `end`, without a copy."""
    slices = []
    for batch in batches:
        low, high = max(begin, 0), min(end, batch.num_rows)
        if low < high:
            slices.append(batch.slice(low, high - low))
        begin, end = begin - batch.num_rows, end - batch.num_rows
    return slices


def flow_mark(flow: FlowPlan) -> str:
    """A fingerprint of the work of a burst worker. It is equal for the same release of Penstock, steps,
    columns and user code. It is computed once, and stays with the plan when that is pickled."""
    known: str | None = flow.__dict__.get(_MARK)
    if known is not None:
        return known
    steps = [
        [step.id, *_plan_marks(step.plan), *_columns(step.output)]
        if isinstance(step, KeyedStep)
        else [step.id, code_mark(step.function), *_columns(step.output)]
        for step in flow.steps
    ]
    sources = [_columns(source.schema) for source in flow.sources]
    release = [penstock_version(), *sys.version_info[:2]]
    mark = hashlib.sha256(json.dumps([release, sources, steps]).encode()).hexdigest()[:16]
    object.__setattr__(flow, _MARK, mark)
    return mark


def _plan_marks(plan: StepPlan) -> list[str]:
    """What a sender's work depends on: the step, the columns of its key or time, and user code."""
    return [str(plan), str(getattr(plan, "on", "")), *map(code_mark, plan.code)]


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def _stream(batches: Sequence[pa.RecordBatch], head: object) -> bytes:
    schema = batches[0].schema if batches else pa.schema([])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata({_HEAD: codec.encode(head)})) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _read(source: pa.NativeFile, kind: type[_Head]) -> tuple[_Head, tuple[pa.RecordBatch, ...]]:
    with pa.ipc.open_stream(source) as reader:
        head = codec.decode((reader.schema.metadata or {}).get(_HEAD, b""), kind)
        batches = tuple(batch.replace_schema_metadata(None) for batch in reader)
    return head, batches
