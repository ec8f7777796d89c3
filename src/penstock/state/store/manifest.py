"""Manifests, layouts and references to segments, which make up a version of the state.

The state at version e is the layout that manifest e builds on, plus the deltas of the manifests
since that layout, up to e. A layout names, for each step, a snapshot of each slot and the runs
above it. A run has the changes of several epochs to several slots.

All of these are values, stored as JSON. A manifest or layout has a checksum of its own contents.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Meta

from penstock import codec
from penstock.errors import CheckpointError, ProtocolError
from penstock.state.arrays import Array
from penstock.state.store.blocks import damaged

T = TypeVar("T")

MOST_SLOTS = 32_768
"""Maximum number of slots of a step."""
_PACKED = re.compile(r"([0-9a-f]{2})*")
_SEGMENTS = ("deltas/", "runs/", "snapshots/")

FORMAT = 2
READABLE = (1, 2)
"""Formats of manifests that can be read. Format 1 had neither hashes in its deltas nor layouts."""


@dataclass(frozen=True)
class DeltaRef:
    """A manifest's reference to a delta file."""

    step: str
    host: str
    file: str
    rows: int
    size: int
    """Size in bytes."""
    checksum: int | None = None
    """Checksum of the segment; None for a file of format 1."""
    slots: str = ""
    """Slots that it has rows of, packed; "" (unknown) for a file of format 1."""
    away: bool = False
    """Whether it has changes of slots that left their host in a live epoch. They come before all others."""


@dataclass(frozen=True)
class SegmentRef:
    """A layout's reference to a run or snapshot file."""

    step: str
    file: str
    rows: int
    size: int
    """Size in bytes."""
    checksum: int
    slots: str
    """Slots whose rows in this file count, packed. Other slots in it have newer files."""
    held: int
    """Number of slots that the file has rows of."""
    upto: int
    """Version of its slots' state."""

    @property
    def slot_bytes(self) -> float:
        """Average bytes of a slot in the file."""
        return self.size / max(1, self.held)

    def trimmed(self, slots: Array) -> SegmentRef | None:
        """The same reference for these slots only; None if it has none of them."""
        left = np.intersect1d(unpack_slots(self.slots), slots)
        return replace(self, slots=pack_slots(left)) if len(left) else None


@dataclass(frozen=True)
class StepLayout:
    """The files of one step."""

    snapshots: dict[int, SegmentRef] = field(default_factory=dict)
    """Slot -> its snapshot."""
    runs: tuple[SegmentRef, ...] = ()
    """Runs, oldest first, by `upto`. Runs of the same version are for different slots."""


@dataclass(frozen=True)
class Layout:
    """The files that make up the state of all steps at a version."""

    version: int
    tag: str
    """Tag that distinguishes layouts and files of the same version."""
    steps: dict[str, StepLayout]

    @property
    def file(self) -> str:
        return f"layouts/{self.version:012d}-{self.tag}.json"

    def refs(self) -> list[SegmentRef]:
        """All files that it names."""
        steps = self.steps.values()
        return [ref for step in steps for ref in (*step.snapshots.values(), *step.runs)]


@dataclass(frozen=True)
class Manifest:
    """The commit record of an epoch."""

    epoch: int
    run: int
    """Number of the successful run of the epoch."""
    base: int
    """Version of the layout that this epoch builds on; -1 if there is none."""
    layout: str
    """File of that layout; "" if there is none."""
    deltas: tuple[DeltaRef, ...]
    """Deltas of this epoch only."""
    routes: dict[str, dict[str, Any]]
    """Step -> route table, as returned by `codec.to_plain`."""
    watermarks: dict[str, int | None]
    """Step -> watermark of the next epoch, in milliseconds."""
    rows: int
    sealed_at_ms: int
    """Wall-clock time of the seal, in Unix milliseconds."""
    placements: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Step -> placements of its slots, as returned by `Placement.as_stored`."""
    event_times: list[list[Any]] = field(default_factory=list)
    """Event-time progress of each source partition, as returned by `plan.watermarks.known_rows`."""
    time_ms: int | None = None
    """Time when the epoch became durable, in milliseconds, which never decreases from epoch to epoch. None
    in a manifest of an earlier release."""
    positions: dict[str, dict[str, Any]] | None = None
    """Number of the source -> partition -> offset at which the next epoch begins. None: Spark's offset log
    has them."""
    runs: list[tuple[int, int]] | None = None
    """Live runs up to this epoch's, newest first, as (start time, first epoch)."""


@dataclass(frozen=True)
class VersionChain:
    """The manifests and the layout that make up a version."""

    manifest: Manifest
    """The version's own manifest."""
    layout: Layout | None
    manifests: tuple[Manifest, ...]
    """Manifests since the layout, oldest first, ending with the version's own. Empty if the layout is of this
    version."""

    @property
    def version(self) -> int:
        return self.manifest.epoch

    def step(self, step: str) -> StepLayout:
        """The step's files in the layout."""
        if self.layout is None:
            return StepLayout()
        return self.layout.steps.get(step, StepLayout())

    def deltas(self, step: str) -> list[tuple[int, DeltaRef]]:
        """The step's deltas since the layout with their epochs, oldest first."""
        return [
            (manifest.epoch, ref)
            for manifest in self.manifests
            for ref in manifest.deltas
            if ref.step == step and ref.rows
        ]


def pack_slots(slots: Array | Iterable[int]) -> str:
    """Pack a set of slots into a short text: one bit per slot, in hexadecimal digits.

    >>> pack_slots([0, 1, 8]), unpack_slots("c080")
    ('c080', array([0, 1, 8], dtype=int32))
    """
    numbers = np.asarray(slots if isinstance(slots, np.ndarray) else list(slots), np.int64)
    if len(numbers) == 0:
        return ""
    bits = np.zeros(int(numbers.max()) + 1, np.bool_)
    bits[numbers] = True
    return np.packbits(bits).tobytes().hex()


def unpack_slots(packed: str) -> Array:
    """The slots in a packed set, ascending (int32)."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8))
    return np.flatnonzero(bits).astype(np.int32)


def slot_groups(slots: Array, sizes: Array, at_once: int) -> list[Array]:
    """Divide slots into groups of about `at_once` bytes. `sizes` are the bytes by slot number.

    >>> slot_groups(np.array([0, 2, 3]), np.array([60, 0, 50, 70]), at_once=100)
    [array([0]), array([2, 3])]
    """
    numbers = np.cumsum(sizes[slots]) // at_once
    groups: list[Array] = np.split(slots, np.flatnonzero(np.diff(numbers)) + 1)
    return [group for group in groups if len(group)]


def checked(value: Manifest | Layout) -> bytes:
    """Encode a manifest or layout as JSON with a format number and a checksum.

    The checksum is that of the fields as Python's `json` module writes them, in all formats and releases.
    Fields that came later are written only where they say something.
    """
    facts = codec.to_plain(value)
    for plain, later in (*_each(facts, "deltas", "away"), *_each(facts, "routes", "splits")):
        if not plain.get(later):
            plain.pop(later, None)
    text = json.dumps({name: fact for name, fact in facts.items() if fact is not None})
    head = json.dumps({"format": FORMAT, "checksum": zlib.crc32(text.encode())})
    return f"{head[:-1]}, {text[1:]}".encode()


def _each(facts: dict[str, Any], name: str, later: str) -> list[tuple[dict[str, Any], str]]:
    """All values of a field that is a list or a dict of values, each with the name of a later field."""
    held = facts.get(name) or ()
    return [(plain, later) for plain in (held.values() if isinstance(held, dict) else held)]


def from_checked(facts: dict[str, Any], name: str, kind: type[T]) -> T:
    """Restore a value from what `checked` wrote. Raises a `CheckpointError` if the format is unknown or the
    contents are damaged."""
    facts = dict(facts)
    format, checksum = facts.pop("format", None), facts.pop("checksum", None)
    if format not in READABLE:
        raise CheckpointError(
            f"{name} was written in state format {format}, but "
            f"this release of Penstock reads {' and '.join(map(str, READABLE))}",
            hint="use the release that wrote it, or start from a new checkpoint folder",
        )
    if format > 1 and zlib.crc32(json.dumps(facts).encode()) != checksum:
        damaged(name, "its checksum does not match")
    if format == 1 and isinstance(facts.get("base"), int):
        # Format 1 stored the first epoch that counts, and had no layouts.
        facts |= {"base": facts["base"] - 1, "layout": ""}
    try:
        value = codec.from_plain(facts, kind)
    except ProtocolError as wrong:
        damaged(name, wrong.message, wrong)
    if wrong_fact := _wrong_fact(value):
        damaged(name, wrong_fact)
    return value


@dataclass(frozen=True)
class Renaming:
    """New names of a flow's steps, until all manifests have them (see `renaming`)."""

    generation: int
    """The first generation whose files have the new names."""
    names: dict[str, str]
    """Old name -> new name, of each step."""


class _FlowStep(TypedDict):
    id: str
    kind: NotRequired[str]
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    keys: list[tuple[str, str]]
    state: list[tuple[str, str]]
    key_schema: NotRequired[str]


class _FlowFacts(TypedDict):
    id: NotRequired[str]
    steps: list[_FlowStep]
    renamings: NotRequired[list[Renaming]]


def check_flow(facts: dict[str, Any], name: str) -> None:
    """Raise a `CheckpointError` if the contents of flow.json are malformed."""
    try:
        for step in codec.from_plain(facts, _FlowFacts)["steps"]:
            if "key_schema" in step:
                pa.ipc.read_schema(pa.py_buffer(base64.b64decode(step["key_schema"])))
    except (ProtocolError, ValueError, OSError, pa.ArrowException) as wrong:
        damaged(name, str(wrong), wrong)


def _wrong_fact(value: object) -> str:
    """Describe what is invalid in a manifest or layout; "" if nothing is."""
    refs: Iterable[DeltaRef | SegmentRef] = ()
    if isinstance(value, Manifest):
        times = abs(value.sealed_at_ms), abs(value.time_ms or 0)  # a clock may be far off
        numbers = (value.epoch, value.run, value.rows, *times)
        if not -1 <= value.base <= value.epoch or not all(0 <= n < 1 << 63 for n in numbers):
            return f"it cannot be of epoch {value.epoch} and build on version {value.base}"
        if any([type(fact) for fact in row] != [int, str, int, int] for row in value.event_times):
            return "its event times of the sources are malformed"
        refs = value.deltas
    elif isinstance(value, Layout):
        refs = value.refs()
        if any(
            not 0 <= slot < MOST_SLOTS for step in value.steps.values() for slot in step.snapshots
        ):
            return "it has snapshots of slots that cannot exist"
    for ref in refs:
        size = (ref.rows, ref.size, *((ref.held, ref.upto) if isinstance(ref, SegmentRef) else ()))
        packed = _PACKED.fullmatch(ref.slots) is not None and len(ref.slots) * 4 <= MOST_SLOTS
        named = ref.file.startswith(_SEGMENTS) if ref.rows else True
        if not packed or not named or ".." in ref.file or not all(-1 <= n < 1 << 63 for n in size):
            return f"it names an invalid file: {ref.file[:200]!r}"
    return ""
