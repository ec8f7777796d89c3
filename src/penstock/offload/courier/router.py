"""The router of a segment: it decides which rows of a task go to burst workers.

A retried task must split its rows in the same way, since a host may have taken in one of its channels
already. So the choice depends only on the plan of the epoch and the content of a row, not on its position:
behind a shuffle, rows come in another order each time. A live courier never retries, and picks rows by their
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.offload.plan.segments import Segment
from penstock.plan.epoch import Offload
from penstock.plan.reflex import Reflex
from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    one_chunk,
    physical,
    valid_mask,
)
from penstock.state.keys.codec import KeyCodec, byte_keys
from penstock.state.keys.encoding import is_text, text_blob
from penstock.state.keys.slot_map import SlotMap

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Golden ratio of 2**64: its multiples are spread evenly."""
_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_WIDE = 4
"""Least width in bytes of a column that may have many values."""


class Router:
    """Sets rows aside for burst workers, and counts those that stay.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> from penstock.plan.steps import KeyedStep
    >>> click = pa.schema([("user", pa.int64()), ("at", pa.int64())])
    >>> plan = AggregatePlan(click, ["user"], {"n": count()})
    >>> clicks = Segment("clicks", (), KeyedStep("clicks", 2, plan), (0,), 1)
    >>> router = Router(clicks, Offload(np.array([0.5, 0.0]), workers=1, deadline_ms=100))
    >>> rows = pa.record_batch({"user": [7, 8] * 500, "at": range(1000)})
    >>> router.stays(rows).num_rows == router.kept
    True
    >>> set(router.aside[0].column("user").to_pylist()), 225 < router.carried < 275
    ({7}, True)
    >>> router.by_slot.tolist() == [router.carried, 0]
    True
    """

    def __init__(
        self,
        segment: Segment,
        offload: Offload,
        reflex: Reflex | None = None,
        first: int | None = None,
        slots: SlotMap | None = None,
    ) -> None:
        """`reflex` is that of the task. `first` is the number of the next row if rows are picked by number;
        None if they are picked by content. `slots` are those of the routes; without them, none is split."""
        self.aside: list[pa.RecordBatch] = []
        self.kept = self.carried = 0
        """Number of rows that stayed, and that were set aside."""
        self.by_slot: npt.NDArray[np.int64] | None = None
        """Number of rows set aside, by slot; None if slots are not known."""
        self._reflex = reflex
        self._whole_keys = segment.whole_keys
        self._columns: list[str] | None = None if first is None else []
        self._first = first or 0
        self._key_names = () if segment.keyed is None else segment.keyed.plan.key_names
        self._codec = _codec(segment) if segment.by_slot or segment.whole_keys else None
        if segment.by_slot:
            assert segment.keyed is not None
            self._slots = slots or SlotMap(segment.keyed.slots)
            self._shares = _shares(offload.shares, self._slots)
            self.by_slot = np.zeros(self._slots.count, np.int64)
        else:
            self._shares = np.array([np.mean(offload.shares)])

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all batches that stay."""
        coming = iter(batches)
        # A retried task must decide the same: rows are counted before the first is sent.
        held = [] if self._reflex is None else self._held(self._reflex, coming)
        for batch in chain(held, coming):
            stays = self.stays(batch)
            if stays.num_rows:
                yield stays

    def _held(self, reflex: Reflex, coming: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Read batches until the shares can be decided, and raise the shares. Returns these batches."""
        held, rows = [], 0
        for batch in coming:
            held.append(batch)
            rows += batch.num_rows
            if rows >= reflex.most:
                break
        self.raise_shares(reflex.share(rows))
        return held

    def raise_shares(self, share: float) -> None:
        """Set at least this fraction of all rows aside."""
        self._shares = np.maximum(self._shares, share)

    def stays(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the next batch that stay; the others are set aside."""
        rows = batch.num_rows
        picked = self._picked(batch)
        carried = int(np.count_nonzero(picked))
        self.carried += carried
        self.kept += rows - carried
        if not carried:
            return batch
        if carried == rows:
            self.aside.append(batch)
            return batch.slice(0, 0)
        self.aside.append(batch.filter(fixed_array(picked, pa.bool_())))
        return batch.filter(fixed_array(~picked, pa.bool_()))

    def by_key(self) -> list[pa.RecordBatch]:
        """The rows set aside, grouped by key."""
        return by_key(self.aside, self._key_names)

    def _picked(self, batch: pa.RecordBatch) -> Array:
        """Mask of the rows that go to burst workers."""
        hashes = None if self._codec is None else self._codec.encode(batch).hashes
        if self._whole_keys:
            assert hashes is not None
            chances = _fraction(hashes)
        else:
            marks = self._marks(batch)
            chances = _fraction(marks if hashes is None else marks ^ hashes)
        if self.by_slot is None:
            everywhere: Array = chances < self._shares[0]
            return everywhere
        assert hashes is not None
        slots = self._slots.of(hashes)
        picked: Array = chances < self._shares[slots]
        self.by_slot += np.bincount(slots[picked], minlength=len(self.by_slot))
        return picked

    def _marks(self, batch: pa.RecordBatch) -> Array:
        if self._columns is None:
            self._columns = marked_columns(batch.schema)
        if self._columns:
            return row_marks(batch, self._columns)
        # without a usable column, the input of a task must come in the same order each time
        first = self._first + self.kept + self.carried
        return np.arange(first, first + batch.num_rows, dtype=np.uint64)


def _shares(shares: Array, slots: SlotMap) -> Array:
    """The share of each slot. A slot that was split since the decision has the share of its hash slot."""
    if len(shares) != slots.count and len(shares) >= slots.hashed > 1:
        return shares[slots.parents]
    return np.broadcast_to(shares, (slots.count,))


def by_key(batches: list[pa.RecordBatch], names: Sequence[str]) -> list[pa.RecordBatch]:
    """Group rows by key, in their order within a key, if the key's columns are known.

    However the rows are cut then, hardly any key is in two pieces, so burst workers make fewer partial
    states. If stateless steps change or add a column of the key, there are more partial states; the result is
    still right.
    """
    if not batches or not set(names) <= set(batches[0].schema.names):
        return batches
    rows = pa.concat_batches(batches)
    keys = KeyCodec(pa.schema([rows.schema.field(name) for name in names]), nulls=True)
    order = np.argsort(keys.encode(rows).hashes, kind="stable")
    return [rows.take(fixed_array(order, pa.int64()))]


def _fraction(numbers: Array) -> Array:
    """Map each number to a fraction from 0 to below 1, by its multiple of the golden ratio."""
    chances: Array = ((numbers * _GOLDEN) >> np.uint64(11)) * 2.0**-53
    return chances


def _codec(segment: Segment) -> KeyCodec:
    """The codec of the key in rows before they are assigned to windows."""
    assert segment.keyed is not None
    plan = segment.keyed.plan
    if segment.by_slot:
        return plan.codec
    columns = pa.schema([plan.inputs[0].field(name) for name in plan.key_names])
    return KeyCodec(columns, plan.codec.nulls)


def marked_columns(schema: pa.Schema) -> list[str]:
    """The columns that row marks are computed from: numbers and times, and strings only if those are narrow.

    Hashing strings as well would cost a courier more than better marks are worth.

    >>> marked_columns(pa.schema([("url", pa.string()), ("at", pa.timestamp("us"))]))
    ['at']
    >>> marked_columns(pa.schema([("url", pa.string()), ("new", pa.bool_())]))
    ['new', 'url']
    """
    widths = {field.name: physical(field.type) for field in schema}
    fixed = {name: dtype.itemsize for name, dtype in widths.items() if dtype is not None}
    texts = [field.name for field in schema if is_text(field.type)]
    return [*fixed] if max(fixed.values(), default=0) >= _WIDE else [*fixed, *texts]


def row_marks(batch: pa.RecordBatch, columns: list[str]) -> Array:
    """A uint64 hash of each row's content: rows that are equal in these columns have the same.

    >>> rows = pa.record_batch({"k": [7, 8, 7], "x": [0.5, None, 0.5]})
    >>> marks = row_marks(rows, ["k", "x"])
    >>> marks[0] == marks[2], marks[0] == marks[1]
    (np.True_, np.False_)
    """
    marks = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        marks ^= _numbers(one_chunk(batch.column(name)))
        marks *= _PRIME
        marks ^= marks >> _SHIFT
    return marks


def _numbers(column: pa.Array) -> Array:
    if physical(column.type) is None:
        blob = text_blob(column.fill_null("") if column.null_count else column)
        return byte_keys(blob.offsets, blob.data).hashes
    values, valid = fixed_values(column), valid_mask(column)
    if valid is not None:
        # values under a null are undefined
        values = np.where(valid, values, np.zeros((), values.dtype))
    bits: Array = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    return bits
