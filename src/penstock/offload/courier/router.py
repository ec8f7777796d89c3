"""The router of a segment: which rows of a task go to burst workers.

A retried task must part its rows in the same way, since a host may have taken in one of its channels
already. So only the plan of the epoch and what a row holds decide, not when it came: behind a shuffle
rows come in another order each time. A live courier tries nothing again, and picks rows by their number.
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
from penstock.state.keys.codec import KeyCodec, byte_keys, slots_of
from penstock.state.keys.encoding import is_text, text_blob

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio's fraction of 2**64: multiples of it are spread evenly."""
_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_WIDE = 4
"""Bytes of a number that may have many values."""


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
    ) -> None:
        """The reflex is that of the task. `first` is the number of the next row, where rows are picked by
        their numbers; None: by what they hold."""
        self.aside: list[pa.RecordBatch] = []
        self.kept = self.carried = 0
        """Rows that stayed, and that were set aside."""
        self.by_slot: npt.NDArray[np.int64] | None = None
        """Rows set aside, by slot; None where slots are not known."""
        self._reflex = reflex
        self._whole_keys = segment.whole_keys
        self._columns: list[str] | None = None if first is None else []
        self._first = first or 0
        self._key_names = () if segment.keyed is None else segment.keyed.plan.key_names
        self._codec = _codec(segment) if segment.by_slot or segment.whole_keys else None
        if segment.by_slot:
            assert segment.keyed is not None
            self._shares = np.broadcast_to(offload.shares, (segment.keyed.slots,))
            self.by_slot = np.zeros(segment.keyed.slots, np.int64)
        else:
            self._shares = np.array([np.mean(offload.shares)])

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of all batches that stay."""
        coming = iter(batches)
        # A retried task must do the same: the rows are counted before the first is sent.
        held = [] if self._reflex is None else self._held(self._reflex, coming)
        for batch in chain(held, coming):
            stays = self.stays(batch)
            if stays.num_rows:
                yield stays

    def _held(self, reflex: Reflex, coming: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The first of the batches, as many as it takes to know the shares, which are raised."""
        held, rows = [], 0
        for batch in coming:
            held.append(batch)
            rows += batch.num_rows
            if rows >= reflex.most:
                break
        self.raise_shares(reflex.share(rows))
        return held

    def raise_shares(self, share: float) -> None:
        """Set at least this part of all rows aside."""
        self._shares = np.maximum(self._shares, share)

    def stays(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the next batch that go their usual way."""
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
        """The rows set aside, those of a key side by side."""
        return by_key(self.aside, self._key_names)

    def _picked(self, batch: pa.RecordBatch) -> Array:
        """Whether each row is to go to burst workers."""
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
        slots = slots_of(hashes, len(self._shares))
        picked: Array = chances < self._shares[slots]
        self.by_slot += np.bincount(slots[picked], minlength=len(self.by_slot))
        return picked

    def _marks(self, batch: pa.RecordBatch) -> Array:
        if self._columns is None:
            self._columns = marked_columns(batch.schema)
        if self._columns:
            return row_marks(batch, self._columns)
        # where there is nothing to go by, what a task reads must come in the same order
        first = self._first + self.kept + self.carried
        return np.arange(first, first + batch.num_rows, dtype=np.uint64)


def by_key(batches: list[pa.RecordBatch], names: Sequence[str]) -> list[pa.RecordBatch]:
    """Rows with those of a key side by side and in their order, where the columns of the key are known.

    However they are cut then, hardly any key is in two pieces: burst workers make fewer partial states of
    them. Stateless steps may still change a column of the key, or make it: then there are more partial
    states, and nothing worse.
    """
    if not batches or not set(names) <= set(batches[0].schema.names):
        return batches
    rows = pa.concat_batches(batches)
    keys = KeyCodec(pa.schema([rows.schema.field(name) for name in names]), nulls=True)
    order = np.argsort(keys.encode(rows).hashes, kind="stable")
    return [rows.take(fixed_array(order, pa.int64()))]


def _fraction(numbers: Array) -> Array:
    """A number from 0 to below 1 for each, by its multiple of the golden ratio."""
    chances: Array = ((numbers * _GOLDEN) >> np.uint64(11)) * 2.0**-53
    return chances


def _codec(segment: Segment) -> KeyCodec:
    """The codec of the key as it stands in rows before they are cut by windows."""
    assert segment.keyed is not None
    plan = segment.keyed.plan
    if segment.by_slot:
        return plan.codec
    columns = pa.schema([plan.inputs[0].field(name) for name in plan.key_names])
    return KeyCodec(columns, plan.codec.nulls)


def marked_columns(schema: pa.Schema) -> list[str]:
    """The columns that marks are made of: numbers and times; texts only where those say little.

    Looking at texts too would cost a courier more than it makes marks better.

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
    """A mark of each row, one uint64, made of what it holds: rows equal in these columns have the same.

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
        # anything may lie under a null
        values = np.where(valid, values, np.zeros((), values.dtype))
    bits: Array = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    return bits
