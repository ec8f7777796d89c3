"""Counts of the records that a courier sends: per slot, and of the most frequent keys.

A record is a row, or the combined state of a key where couriers combine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregate.kernels import count_rows
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.slot_map import SlotMap
from penstock.state.keys.text import shown
from penstock.wire.report import Counts, HotKeyCount

REPORTED = 8
"""Number of keys that are reported for each watched slot."""
_LONGEST = 200
"""Maximum length of a key's text, in characters."""


class Tally:
    """Counts the records that one task sends to the hosts of one step.

    Records are counted by slot, and in watched slots also by key. A key with more than a ninth of a watched
    slot's records is always reported, since it is among the first eight in at least one of the batches.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
    >>> tally = Tally(KeyedStep("clicks", 2, plan), watched=(0, 1))
    >>> rows = pa.record_batch({"user": [7, 8, 7, 7]})
    >>> tally.note(rows, plan.codec.encode(rows).hashes).tolist()
    [0, 1, 0, 0]
    >>> tally.counts.tolist(), tally.hot()[0].key, tally.hot()[0].count
    ([3, 1], 'user=7', 3)
    """

    def __init__(
        self, step: KeyedStep, watched: tuple[int, ...] = (), slots: SlotMap | None = None
    ) -> None:
        """`slots` are those of the routes; without them, no slot is split."""
        self.step, self._slots = step.id, slots or SlotMap(step.slots)
        self.counts: Counts = np.zeros(self._slots.count, np.int64)
        self._plan = step.plan
        self._watching: tuple[int, ...] = ()
        self._watched: npt.NDArray[np.bool_] | None = None
        self.watch(watched)
        self._key_counts: list[tuple[Array, Array]] = []
        """Hashes of keys in watched slots, and the number of records of each, batch by batch."""
        self._texts: dict[int, str] = {}
        """Hash -> text of the key, for the most frequent keys of a slot in a batch."""

    def watch(self, watched: tuple[int, ...]) -> None:
        """Count the keys of exactly these slots from now on."""
        if watched == self._watching:
            return
        self._watching, self._watched = watched, None
        if watched:
            self._watched = np.zeros(len(self.counts), np.bool_)
            # Control may name a slot that is no longer split.
            self._watched[[slot for slot in watched if 0 <= slot < len(self.counts)]] = True

    def note(self, batch: pa.RecordBatch, hashes: Array) -> Array:
        """Count a batch that is about to be sent. Returns the slot of each record."""
        slots = self._slots.of(hashes)
        count_rows(self.counts, slots)
        if self._watched is not None:
            rows = np.flatnonzero(self._watched[slots])
            if len(rows):
                self._note_keys(batch, hashes, rows)
        return slots

    def hot(self) -> list[HotKeyCount]:
        """The most frequent keys of each watched slot, ordered by slot, the most frequent first."""
        if not self._key_counts:
            return []
        hashes = np.concatenate([hashes for hashes, _ in self._key_counts])
        counts = np.concatenate([counts for _, counts in self._key_counts])
        hashes, places = np.unique(hashes, return_inverse=True)
        counts = np.bincount(places, counts).astype(np.int64)
        named = np.isin(hashes, np.fromiter(self._texts, np.uint64))
        hashes, counts = hashes[named], counts[named]
        slots = self._slots.of(hashes)
        return [
            HotKeyCount(self.step, int(slots[i]), self._texts[hash], int(counts[i]), hash)
            for i in _leading(slots, counts)
            for hash in [int(hashes[i])]
        ]

    def _note_keys(self, batch: pa.RecordBatch, hashes: Array, rows: Array) -> None:
        unique, first, counts = np.unique(hashes[rows], return_index=True, return_counts=True)
        self._key_counts.append((unique, counts))
        leading = _leading(self._slots.of(unique), counts)
        new = [i for i in leading.tolist() if int(unique[i]) not in self._texts]
        if not new:
            return
        some = batch.take(fixed_array(rows[first[new]], pa.int64()))
        codec = self._plan.codec
        keys = codec.as_tuples(self._plan.sent_keys(some))
        for place, key in zip(new, keys, strict=True):
            hash = int(unique[place])
            self._texts[hash] = _text(codec.schema.names, key, hash)


def _leading(slots: Array, counts: Array) -> Array:
    """Positions of the greatest counts of each slot, ordered by slot, the greatest first."""
    order = np.lexsort((-counts, slots))
    ordered = slots[order]
    leading: Array = order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < REPORTED]
    return leading


def _text(names: list[str], key: tuple[object, ...], hash: int) -> str:
    """The key as readable text. The driver sums counts by this text, so shortened texts must differ too."""
    text = ", ".join(f"{name}={shown(value)}" for name, value in zip(names, key, strict=True))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 20]}... ({hash:016x})"
    return text or "(the only key)"
