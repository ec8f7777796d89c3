"""What makes up a version of the state: manifests, layouts, and the segments that they name.

The state at version e is the layout that manifest e builds on, then the deltas of the manifests
since that layout, up to e. A layout names, for each step, a snapshot of each slot and the runs
above it; a run holds the changes of several epochs to several slots.

All of these are values, and JSON. A manifest or layout carries a checksum of its own facts.
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
"""Slots that a step may have."""
_PACKED = re.compile(r"([0-9a-f]{2})*")
_SEGMENTS = ("deltas/", "runs/", "snapshots/")

FORMAT = 2
READABLE = (1, 2)
"""Formats of manifests that can be read. Format 1 had neither hashes in its deltas nor layouts."""


@dataclass(frozen=True)
class DeltaRef:
    """One delta: where it is and what it holds."""

    step: str
    host: str
    file: str
    rows: int
    size: int
    checksum: int | None = None
    """The segment's checksum; None for a file of format 1."""
    slots: str = ""
    """The slots that it has rows of, packed; "" for a file of format 1: they are not known."""


@dataclass(frozen=True)
class SegmentRef:
    """One run or snapshot as a layout sees it."""

    step: str
    file: str
    rows: int
    size: int
    checksum: int
    slots: str
    """The slots that count, packed. The file may hold more: those have moved on to other files."""
    held: int
    """How many slots the file has rows of."""
    upto: int
    """The version that it brings its slots to."""

    @property
    def slot_bytes(self) -> float:
        """What a slot takes in the file, on average."""
        return self.size / max(1, self.held)

    def trimmed(self, slots: Array) -> SegmentRef | None:
        """The same file for these slots only; None if there are none of them in it."""
        left = np.intersect1d(unpack_slots(self.slots), slots)
        return replace(self, slots=pack_slots(left)) if len(left) else None


@dataclass(frozen=True)
class StepLayout:
    """The files of one step."""

    snapshots: dict[int, SegmentRef] = field(default_factory=dict)
    """slot -> its snapshot."""
    runs: tuple[SegmentRef, ...] = ()
    """Oldest first, by `upto`. Several may be of one version, then for different slots."""


@dataclass(frozen=True)
class Layout:
    """The files that make up the state of all steps at a version."""

    version: int
    tag: str
    """Tells layouts and files apart that were made for the same version."""
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
    """All that makes an epoch durable."""

    epoch: int
    run: int
    base: int
    """The version of the layout that this one builds on; -1 if it builds on nothing."""
    layout: str
    """The file of that layout; "" if there is none."""
    deltas: tuple[DeltaRef, ...]
    """The deltas of this epoch only."""
    routes: dict[str, dict[str, Any]]
    """step -> route table, as `codec.to_plain` gives it."""
    watermarks: dict[str, int | None]
    """step -> watermark of the next epoch, in milliseconds."""
    rows: int
    sealed_at_ms: int
    placements: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """step -> since when and why groups of slots are where they are."""
    event_times: list[list[Any]] = field(default_factory=list)
    """How far each partition of the sources has come, as `plan.watermarks.known_rows` gives it."""
    time_ms: int | None = None
    """The time when the epoch was made durable, in milliseconds; later epochs have no earlier one. None
    in a manifest of an earlier release."""
    positions: dict[str, dict[str, Any]] | None = None
    """Source, by number -> partition -> where the next epoch begins. None: Spark's log tells that."""
    runs: list[tuple[int, int]] | None = None
    """Live runs up to the one that this epoch is of, newest first: when each began, and its first epoch."""


@dataclass(frozen=True)
class VersionChain:
    """All that restores a version."""

    manifest: Manifest
    """The version's own manifest."""
    layout: Layout | None
    manifests: tuple[Manifest, ...]
    """The manifests since the layout, oldest first; the last is the version's, unless the layout is."""

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
    """A set of slots as a short text: a bit for each slot, in hexadecimal digits.

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
    """The slots of a set, in ascending order (int32)."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8))
    return np.flatnonzero(bits).astype(np.int32)


def slot_groups(slots: Array, sizes: Array, at_once: int) -> list[Array]:
    """Slots in groups of about `at_once` bytes together; `sizes` is by slot number.

    >>> slot_groups(np.array([0, 2, 3]), np.array([60, 0, 50, 70]), at_once=100)
    [array([0]), array([2, 3])]
    """
    numbers = np.cumsum(sizes[slots]) // at_once
    groups: list[Array] = np.split(slots, np.flatnonzero(np.diff(numbers)) + 1)
    return [group for group in groups if len(group)]


def checked(value: Manifest | Layout) -> bytes:
    """A manifest or layout as JSON with a format and a checksum.

    The checksum is of the facts as Python's own `json` writes them, in all formats and releases.
    """
    facts = codec.to_plain(value)
    text = json.dumps({name: fact for name, fact in facts.items() if fact is not None})
    head = json.dumps({"format": FORMAT, "checksum": zlib.crc32(text.encode())})
    return f"{head[:-1]}, {text[1:]}".encode()


def from_checked(facts: dict[str, Any], name: str, kind: type[T]) -> T:
    """Undo `checked`. Refuses formats that it does not know, and damaged facts."""
    facts = dict(facts)
    format, checksum = facts.pop("format", None), facts.pop("checksum", None)
    if format not in READABLE:
        raise CheckpointError(
            f"{name} was written in state format {format}; "
            f"this Penstock reads {' and '.join(map(str, READABLE))}",
            hint="open it with the release that wrote it, or start from a new checkpoint folder",
        )
    if format > 1 and zlib.crc32(json.dumps(facts).encode()) != checksum:
        damaged(name, "its checksum does not match")
    if format == 1 and isinstance(facts.get("base"), int):
        facts |= {"base": facts["base"] - 1, "layout": ""}  # it was the first epoch
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
    """Refuse facts about a flow (flow.json) that are not of the shape that they are written in."""
    try:
        for step in codec.from_plain(facts, _FlowFacts)["steps"]:
            if "key_schema" in step:
                pa.ipc.read_schema(pa.py_buffer(base64.b64decode(step["key_schema"])))
    except (ProtocolError, ValueError, OSError, pa.ArrowException) as wrong:
        damaged(name, str(wrong), wrong)


def _wrong_fact(value: object) -> str:
    """What cannot be true of a manifest or layout, so that nobody follows it; "" if nothing."""
    refs: Iterable[DeltaRef | SegmentRef] = ()
    if isinstance(value, Manifest):
        times = abs(value.sealed_at_ms), abs(value.time_ms or 0)  # a clock may be wrong by much
        numbers = (value.epoch, value.run, value.rows, *times)
        if not -1 <= value.base <= value.epoch or not all(0 <= n < 1 << 63 for n in numbers):
            return f"it cannot be of epoch {value.epoch} and build on version {value.base}"
        if any([type(fact) for fact in row] != [int, str, int, int] for row in value.event_times):
            return "it does not tell how far sources have come"
        refs = value.deltas
    elif isinstance(value, Layout):
        refs = value.refs()
        if any(
            not 0 <= slot < MOST_SLOTS for step in value.steps.values() for slot in step.snapshots
        ):
            return "it has snapshots of slots that there cannot be"
    for ref in refs:
        size = (ref.rows, ref.size, *((ref.held, ref.upto) if isinstance(ref, SegmentRef) else ()))
        packed = _PACKED.fullmatch(ref.slots) is not None and len(ref.slots) * 4 <= MOST_SLOTS
        named = ref.file.startswith(_SEGMENTS) if ref.rows else True
        if not packed or not named or ".." in ref.file or not all(-1 <= n < 1 << 63 for n in size):
            return f"it names a file that cannot be: {ref.file[:200]!r}"
    return ""
