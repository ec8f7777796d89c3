"""Messages of live runs: between couriers and hosts, and between couriers and the driver.

A stream between a courier and a host lasts for a run: the time from one start, or recovery, of a flow's
couriers to the next. A frame is a record batch with metadata, or metadata alone. A Flight stream has batches
of one schema only. A batch of another schema is packed into the metadata, after the frame.

The driver numbers control messages in one sequence for a run. Every courier puts every message between its
chunks, in that order, so that a message marks a point in each stream.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import codec
from penstock.errors import ProtocolError
from penstock.plan.epoch import Offload, RouteTable

_PACKED = b"\n"
"""Separator between a frame, which is JSON on one line, and the batch that is packed after it."""


@dataclass(frozen=True)
class StreamHeader:
    """The header of one courier's stream to one host of a step, in one run."""

    step: str
    run: int
    courier: int
    couriers: int
    """Number of couriers in the run. A host aligns the streams of all of them."""
    after: int = -1
    """Number of the newest control message before the stream's first frame.

    A host that joins in the middle of a run gets only later messages.
    """


@dataclass(frozen=True)
class Chunk:
    """Records for a step that are sent and applied together."""

    number: int
    """Serial number among a courier's chunks for the step, over all hosts."""
    kind: str
    """Kind of its records: rows of the step's input, or partial states."""


@dataclass(frozen=True)
class Time:
    """Progress of event time in the rows that a courier sends to a step."""

    watermark_ms: int | None
    """Watermark in milliseconds since 1970; None if unknown, which holds the step back."""
    idle: bool = False
    """Whether all sources that the courier reads for the step are idle, so that it holds nobody back."""
    final: bool = False
    """Whether this courier will send no more rows, so that windows need not wait for any."""


@dataclass(frozen=True)
class CheckpointMessage:
    """The end of an epoch: rows before it belong to this epoch, rows after it to the next one."""

    number: int
    epoch: int
    durable: int
    """Newest epoch that has a manifest. Nobody rolls back to an older one."""
    last: bool = False
    """Whether couriers send nothing after it in this run, so that the next run sends nothing twice."""
    closes: bool = False
    """Whether all input has ended and no slot moves any more, so that open windows close."""


@dataclass(frozen=True)
class Handing:
    """Slots that move from one host of a step to another."""

    slots: tuple[int, ...]
    source: str
    source_location: str
    target: str
    target_location: str


@dataclass(frozen=True)
class Reroute:
    """An order to send rows of these slots to other hosts from this point of the stream on."""

    number: int
    step: str
    handings: tuple[Handing, ...]
    whole: bool = False
    """Whether rows of a slot wait for the whole slot, and not only for their own keys."""
    trickle_mb_s: float = 0.0
    """Highest rate of background fetching, in megabytes per second; 0: entries are fetched on demand only."""


@dataclass(frozen=True)
class Part:
    """Notice that a host, which owns no slots any more, leaves its step at this point of the stream."""

    number: int
    step: str
    host: str


@dataclass(frozen=True)
class Message:
    """One control message of the driver. Exactly one field is set."""

    checkpoint: CheckpointMessage | None = None
    reroute: Reroute | None = None
    part: Part | None = None

    @property
    def number(self) -> int:
        """Number of the message in the run's sequence."""
        content = self.checkpoint or self.reroute or self.part
        assert content is not None
        return content.number


@dataclass(frozen=True)
class Frame:
    """A frame from a courier to a host. Exactly one field is set. A chunk comes with its record batch."""

    chunk: Chunk | None = None
    time: Time | None = None
    message: Message | None = None
    leave: bool = False
    """Whether the courier leaves because its sources have ended: it sends nothing more."""


def pack(frame: bytes, batch: pa.RecordBatch) -> bytes:
    """Pack an encoded frame, and a batch with another schema than the stream's, into metadata."""
    sink = pa.BufferOutputStream()
    sink.write(frame + _PACKED)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(metadata: pa.Buffer) -> tuple[Frame, pa.RecordBatch | None]:
    """Return the frame in metadata, and the batch that is packed after it, if there is one.

    >>> rows = pa.record_batch({"k": [1, 2]})
    >>> frame = Frame(chunk=Chunk(7, "partials"))
    >>> unpack(pa.py_buffer(pack(codec.encode(frame), rows))) == (frame, rows)
    True
    >>> unpack(pa.py_buffer(codec.encode(frame))) == (frame, None)
    True
    """
    text = metadata.to_pybytes()
    end = text.find(_PACKED)
    if end < 0:
        return codec.decode(text, Frame), None
    frame = codec.decode(text[:end], Frame)
    try:
        with pa.ipc.open_stream(metadata.slice(end + len(_PACKED))) as reader:
            (batch,) = reader
        batch.validate(full=True)
        _ = batch.schema.names  # fails if a name is not valid text
    except (pa.ArrowException, OSError, ValueError) as wrong:
        raise ProtocolError(f"the records packed into a frame cannot be read: {wrong}") from wrong
    return frame, batch


@dataclass(frozen=True)
class Back:
    """A message from a host to a courier, alone or after a batch of the step's output."""

    took: int | None = None
    """Number of the chunk up to which all of this courier's chunks were applied; None: unchanged."""
    done: tuple[int, ...] = ()
    """Numbers of later chunks that were applied since the last message, while older ones wait for state."""
    watermark_ms: int | None = None
    """Watermark that the host has reached, in milliseconds since 1970; None: unchanged."""
    message: int | None = None
    """Number of a control message that took effect. All rows before it were answered."""
    caught_up: int | None = None
    """Number of a reroute after which all slots have fired up to the host's watermark.

    The slots may come from a host with an earlier watermark.
    """
    busy_us: int = 0
    """Microseconds that the host has worked since its last message."""
    aside: dict[str, Any] | None = None
    """Dead letters and late rows of the round: an `exchange.aside.Aside` as plain facts."""
    final: bool = False
    """Whether all input of the step has ended, and all its output was sent before this."""
    error: str | None = None
    """Error, from `errors.to_wire`, for which the host has given up the run. The courier must stop, too."""


@dataclass(frozen=True)
class HostPlace:
    """A host of a step, and its location."""

    host: str
    location: str


@dataclass(frozen=True)
class LiveStep:
    """The hosts of a keyed step when a run begins."""

    step: str
    routes: RouteTable
    hosts: tuple[HostPlace, ...]
    """All hosts of the step, including those that own no slots; `routes.hosts` are among them."""
    watermark_ms: int | None = None
    """Watermark that the step's hosts had reached at the manifest, in milliseconds since 1970."""


@dataclass(frozen=True)
class LiveOrder:
    """The driver's order to a courier to begin a run."""

    run: int
    courier: int
    couriers: int
    epoch: int
    """First epoch of the run: the one after the newest manifest."""
    steps: tuple[LiveStep, ...]
    positions: dict[int, dict[str, Any]]
    """Source, by number -> partition that this courier reads -> offset to start at."""
    event_times: list[list[Any]] = field(default_factory=list)
    """Newest event time of each partition, from `plan.watermarks.known_rows`."""
    time_ms: int = 0
    """Start of the run, and earliest time of day in it, in milliseconds since 1970.

    It is the same for all couriers, and higher for a later run.
    """
    earlier: tuple[tuple[int, int], ...] = ()
    """(start, first epoch) of earlier runs that began with an earlier epoch, newest first."""
    count_ms: int = 0
    """Milliseconds between two reports of counts; 0: no reports."""


@dataclass(frozen=True)
class StepGuide:
    """Instructions to couriers for the rows of a keyed step, valid until the next ones.

    They change who does the work, but not its result. So they may take effect at any chunk, and are not a
    numbered message.
    """

    step: str
    watched: tuple[int, ...] = ()
    """Slots whose keys couriers count, because one key may have more rows than a host can take."""
    two_stage: bool = False
    """Whether couriers combine the rows of each key in a chunk, if the step's state can be merged."""
    offload: Offload | None = None
    """Rows that go to burst workers; None: no rows."""


@dataclass(frozen=True)
class Guides:
    """Instructions to couriers for all keyed steps. A step that is missing here has none."""

    steps: tuple[StepGuide, ...] = ()
    reach: str | None = None
    """How couriers reach burst workers, as text; None: there are none."""

    def of(self, step: str) -> StepGuide:
        """Return the guide of one step."""
        return next((guide for guide in self.steps if guide.step == step), StepGuide(step))


@dataclass(frozen=True)
class EpochPassed:
    """A courier's part of a checkpoint: its rows of the epoch have passed all steps and are in the sink."""

    run: int
    epoch: int
    courier: int
    positions: dict[int, dict[str, Any]]
    """Source -> partition -> offset at which the next epoch begins."""
    seen: dict[str, Any] = field(default_factory=dict)
    """Report of the rows read and sent in the epoch, as `wire.report.Seen`."""
    aside: dict[str, Any] | None = None
    """Dead letters and late rows, as `exchange.aside.Aside`."""
    ended: bool = False
    """Whether all its sources have ended with this epoch."""
    closed: bool = False
    """Whether the rows of all closed windows were delivered with this epoch."""
    busy_ms: float = 0.0
    """CPU time of the courier's threads since its last report, in milliseconds."""
    rows: dict[int, dict[str, int]] = field(default_factory=dict)
    """Source -> partition -> number of rows read in the epoch."""
    lag_ms: float = 0.0
    """Age of the newest row when it was last read, in milliseconds."""


@dataclass(frozen=True, eq=False)
class StepCounts:
    """A courier's counts for one step since its run began. Arrays are indexed by slot."""

    step: str
    arrived: npt.NDArray[np.int64]
    """Number of records sent to hosts."""
    completed: npt.NDArray[np.int64]
    """Number of those records that hosts have applied."""
    latency_us: npt.NDArray[np.float64]
    """Sum of the applied records' latencies, in microseconds, from arrival until they were applied."""
    done: dict[str, int]
    """Host -> number of this courier's records that it has applied."""
    busy_us: dict[str, int]
    """Host -> microseconds that it has worked, for all couriers."""
    oldest_us: dict[str, int]
    """Host -> age of the oldest record that it has not applied, in microseconds."""
    waiting: int = 0
    """Number of rows that have arrived and were not sent yet."""


@dataclass(frozen=True, eq=False)
class CourierCounts:
    """A courier's counts in a run, for each step."""

    run: int
    courier: int
    steps: tuple[StepCounts, ...]


def output_courier(host: str, couriers: int) -> int:
    """Return the number of the courier that gets all output of a host, so that it keeps its order.

    >>> output_courier("sum/0", 1)
    0
    """
    return zlib.crc32(host.encode()) % couriers
