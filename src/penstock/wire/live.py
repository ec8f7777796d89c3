"""What goes over a lasting stream between a courier and a host, and what the driver tells couriers.

A stream lasts for a run: the time from one start, or recovery, of a flow's couriers to the next. A frame is
a record batch with metadata, or metadata alone. Flight lets a stream have batches of one schema: one of
another schema is packed into the metadata, behind the frame. Control messages are numbered by the driver,
in one sequence for a run; every courier puts every message between its chunks, in that order, so that a
message is a point of the stream.
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
"""What parts a frame, which is JSON on one line, from a batch that is packed behind it."""


@dataclass(frozen=True)
class StreamHeader:
    """Names one courier's stream to one host of a step, in one run."""

    step: str
    run: int
    courier: int
    couriers: int
    """How many couriers the run has: a host aligns the streams of all of them."""
    after: int = -1
    """The newest control message before the stream's first frame: a host that joins in the middle of a run
    gets only those behind it."""


@dataclass(frozen=True)
class Chunk:
    """Records of a step that go together."""

    number: int
    """Counts the chunks of a courier to a step, to whatever hosts they go."""
    kind: str
    """What its records are: rows of the step's input, or partial states."""


@dataclass(frozen=True)
class Time:
    """How far event time has come in what a courier sends to a step."""

    watermark_ms: int | None
    """None: not known yet, which holds the step back."""
    idle: bool = False
    """All that the courier reads for the step is quiet: it holds nobody back."""
    final: bool = False
    """No more rows will come from this courier, and windows need not wait for any."""


@dataclass(frozen=True)
class CheckpointMessage:
    """What lies before it belongs to this epoch, what lies behind it to the next one."""

    number: int
    epoch: int
    durable: int
    """The newest epoch that has a manifest: what is older can no longer be asked back."""
    last: bool = False
    """Couriers send nothing behind it in this run, so that nothing leaves twice when the next one begins."""
    closes: bool = False
    """All input has ended, and no slot changes hands behind it: windows that are open close."""


@dataclass(frozen=True)
class Handing:
    """Slots that go from one host of a step to another."""

    slots: tuple[int, ...]
    source: str
    source_location: str
    target: str
    target_location: str


@dataclass(frozen=True)
class Reroute:
    """From here on, rows of these slots go to other hosts."""

    number: int
    step: str
    handings: tuple[Handing, ...]
    whole: bool = False
    """Rows of a slot wait until all of it has come; else until their own keys have."""
    trickle_mb_s: float = 0.0


@dataclass(frozen=True)
class Part:
    """From here on a host, which owns nothing any more, is not among those of its step."""

    number: int
    step: str
    host: str


@dataclass(frozen=True)
class Message:
    """One control message of the driver: just one of these."""

    checkpoint: CheckpointMessage | None = None
    reroute: Reroute | None = None
    part: Part | None = None

    @property
    def number(self) -> int:
        """Its place in the run's sequence."""
        told = self.checkpoint or self.reroute or self.part
        assert told is not None
        return told.number


@dataclass(frozen=True)
class Frame:
    """From a courier to a host: just one of these; a chunk comes with its record batch."""

    chunk: Chunk | None = None
    time: Time | None = None
    message: Message | None = None
    leave: bool = False
    """The courier's sources have ended: it sends nothing more, and nobody waits for it."""


def pack(frame: bytes, batch: pa.RecordBatch) -> bytes:
    """Metadata that holds an encoded frame, and a batch of another schema than the stream's."""
    sink = pa.BufferOutputStream()
    sink.write(frame + _PACKED)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(metadata: pa.Buffer) -> tuple[Frame, pa.RecordBatch | None]:
    """The frame in a frame's metadata, and the batch that is packed behind it, if any.

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
        _ = batch.schema.names  # text, or not
    except (pa.ArrowException, OSError, ValueError) as wrong:
        raise ProtocolError(f"the records behind a frame cannot be read: {wrong}") from wrong
    return frame, batch


@dataclass(frozen=True)
class Back:
    """From a host to a courier, alone or beside a batch of the step's output, which it is behind."""

    took: int | None = None
    """All chunks of this courier up to this one have been applied."""
    done: tuple[int, ...] = ()
    """Later chunks that have been applied since the host last told: older ones wait for state."""
    watermark_ms: int | None = None
    """What the host has fired up to, if that has changed."""
    message: int | None = None
    """The control message that the host has acted on: all that came before it has been answered."""
    caught_up: int | None = None
    """A reroute that the host has acted on, and all of whose slots it has fired as far as its watermark says:
    they may come from a host that was not so far."""
    busy_us: int = 0
    """Time that the host worked since it last told, in microseconds."""
    aside: dict[str, Any] | None = None
    """Dead letters of the round, and late rows: an `exchange.aside.Aside` as plain facts."""
    final: bool = False
    """All input of the step has ended, and all that it had to give is before this."""
    error: str | None = None
    """Why the host has given the run up, as `errors.to_wire` puts it: the courier is to break off."""


@dataclass(frozen=True)
class HostPlace:
    """A host of a step, and where it listens."""

    host: str
    location: str


@dataclass(frozen=True)
class LiveStep:
    """Who serves a keyed step when a run begins."""

    step: str
    routes: RouteTable
    hosts: tuple[HostPlace, ...]
    """All of its hosts, those that own nothing too; `routes.hosts` are among them."""
    watermark_ms: int | None = None
    """What the step's hosts have fired up to, as the manifest says."""


@dataclass(frozen=True)
class LiveOrder:
    """What a courier is to do in a run."""

    run: int
    courier: int
    couriers: int
    epoch: int
    """The epoch that is under way: the one after the newest manifest."""
    steps: tuple[LiveStep, ...]
    positions: dict[int, dict[str, Any]]
    """Source, by number -> its partitions that this courier reads, and where they go on."""
    event_times: list[list[Any]] = field(default_factory=list)
    """How far each partition had come, as `plan.watermarks.known_rows` gives it."""
    time_ms: int = 0
    """When the run begins: the time of day is not before this. The same for all couriers, and higher for a
    later run."""
    earlier: tuple[tuple[int, int], ...] = ()
    """Runs before this one that began with an earlier epoch: when, and with which one; newest first."""
    count_ms: int = 0
    """Milliseconds from one report of counts to the next; 0: nobody wants any."""


@dataclass(frozen=True)
class StepGuide:
    """What couriers do with rows of a keyed step, until they are told otherwise. It changes who does the
    work, never what comes of it: so it holds from whatever chunk on, and is no numbered message."""

    step: str
    watched: tuple[int, ...] = ()
    """Slots whose keys couriers count: one of them may be hotter than a host can take."""
    two_stage: bool = False
    """Whether couriers combine the rows of each key in a chunk, where the step's state merges."""
    offload: Offload | None = None
    """Rows that go to burst workers; None: none."""


@dataclass(frozen=True)
class Guides:
    """What couriers do with rows of all keyed steps; a step that is not among these goes unguided."""

    steps: tuple[StepGuide, ...] = ()
    reach: str | None = None
    """How couriers reach burst workers, as text; None: there are none."""

    def of(self, step: str) -> StepGuide:
        """The guide of one step."""
        return next((guide for guide in self.steps if guide.step == step), StepGuide(step))


@dataclass(frozen=True)
class EpochPassed:
    """A courier's part of a checkpoint: all of the epoch is through the steps and in the sink."""

    run: int
    epoch: int
    courier: int
    positions: dict[int, dict[str, Any]]
    """Source -> partition -> where the next epoch begins."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What it read and sent in the epoch, as `wire.report.Seen`."""
    aside: dict[str, Any] | None = None
    ended: bool = False
    """All its sources have ended, with this epoch."""
    closed: bool = False
    """All that hosts had to give when windows closed is through, with this epoch."""


@dataclass(frozen=True, eq=False)
class StepCounts:
    """A courier's counts of one step since its run began. Arrays are by slot."""

    step: str
    arrived: npt.NDArray[np.int64]
    """Records that were sent to hosts."""
    completed: npt.NDArray[np.int64]
    """Records among them that hosts have applied."""
    latency_us: npt.NDArray[np.float64]
    """Sum of the latencies of those, in microseconds: from arrival until they were applied."""
    done: dict[str, int]
    """Host -> its records that it has applied."""
    busy_us: dict[str, int]
    """Host -> time that it has worked, for all couriers, in microseconds."""
    oldest_us: dict[str, int]
    """Host -> age of the oldest records that it has not applied, in microseconds."""
    waiting: int = 0
    """Rows that are known to have arrived and that were not sent yet."""


@dataclass(frozen=True, eq=False)
class CourierCounts:
    """What a courier of a run has counted, step by step."""

    run: int
    courier: int
    steps: tuple[StepCounts, ...]


def output_courier(host: str, couriers: int) -> int:
    """The courier that takes all output of a host: one only, so that it keeps its order.

    >>> output_courier("sum/0", 1)
    0
    """
    return zlib.crc32(host.encode()) % couriers
