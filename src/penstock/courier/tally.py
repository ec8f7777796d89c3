"""What a courier counts of the records that it sends: how many to each slot, and of which keys.

A record is what a host takes in: a row, or the combined state of a key where couriers combine.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from penstock.control.diagnose.hot_keys import HotKeyCount
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import slots_of
from penstock.state.keys.text import shown

Counts = npt.NDArray[np.int64]
"""One for each slot of a step."""

TOLD = 3
"""So many keys of each watched slot are told of."""
_LONGEST = 200
"""Characters of a key's text."""


class Tally:
    """Counts what one task sends to the hosts of one step.

    Records are counted by slot; in slots that are watched also by key. A key with more than a
    quarter of all that a watched slot gets from the task is always told of, since it must then be
    among the first three in one of the batches.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
    >>> tally = Tally(KeyedStep("clicks", 2, plan), watched=(0, 1))
    >>> rows = pa.record_batch({"user": [7, 8, 7, 7]})
    >>> tally.note(rows, plan.codec.encode(rows).hashes).tolist()
    [0, 1, 0, 0]
    >>> tally.counts.tolist(), tally.hot()[0].key, tally.hot()[0].count
    ([3, 1], 'user=7', 3)
    """

    def __init__(self, step: KeyedStep, watched: tuple[int, ...] = (), keeps: bool = False) -> None:
        self.step = step.id
        self.counts: Counts = np.zeros(step.slots, np.int64)
        self._plan = step.plan
        self._watched: npt.NDArray[np.bool_] | None = None
        if watched:
            self._watched = np.zeros(step.slots, np.bool_)
            self._watched[list(watched)] = True
        self._found: list[tuple[Array, Array]] = []
        """Hashes of keys in watched slots and how many records each had, batch by batch."""
        self._keeps = keeps
        self._hashes: list[Array] = []
        """Of all keys, if it `keeps` them."""
        self._carried: npt.NDArray[np.float64] | None = None
        """How many times as many records as were sent each slot has, with those that functions carry."""
        self._texts: dict[int, str] = {}
        """hash -> key, of those that led their slot in a batch."""

    def note(self, batch: pa.RecordBatch, hashes: Array) -> Array:
        """Count a batch that is about to be sent; gives the slot of each record."""
        slots = slots_of(hashes, len(self.counts))
        _count(slots, self.counts)
        if self._keeps:
            self._hashes.append(hashes)
        if self._watched is not None:
            rows = np.flatnonzero(self._watched[slots])
            if len(rows):
                self._note_keys(batch, hashes, rows)
        return slots

    def add_carried(
        self, kept: int, carried: int, by_slot: Counts | None, made: Tally, combined: bool
    ) -> None:
        """Count rows that functions carry, as the records that hosts would have got without them.

        `kept` rows made the records counted so far; of `carried` rows, so many of each slot where that
        is known, functions made the records that `made` has counted. Where couriers have `combined`
        their rows, the keys of both count. Both tallies keep hashes. Called once, at the end.

        >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
        >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
        >>> own, made = (Tally(KeyedStep("clicks", 2, plan), keeps=True) for _ in range(2))
        >>> for tally, users in (own, [1, 2]), (made, [2, 5]):
        ...     rows = pa.record_batch({"user": users})
        ...     _ = tally.note(rows, plan.codec.encode(rows).hashes)
        >>> own.add_carried(10, 90, None, made, combined=True)
        >>> own.counts.sum()
        np.int64(3)
        """
        if not carried:
            return
        sent, records = self.counts, int(self.counts.sum())
        if combined:
            self.counts = self._united(made)
        elif by_slot is not None:
            each = records / kept if records else 1.0
            self.counts = _whole(sent + by_slot * each)
        elif records:
            self.counts = _whole(sent * ((kept + carried) / kept))
        else:
            self.counts = _whole(made.counts * (carried / max(1, int(made.counts.sum()))))
        self._carried = self.counts / np.maximum(1, sent)

    def _united(self, made: Tally) -> Counts:
        """Of each key as many records as were sent; of those that only functions had, one. By slot."""
        own, counts = np.unique(_joined(self._hashes), return_counts=True)
        others = np.setdiff1d(_joined(made._hashes), own)
        slots = slots_of(np.concatenate([own, others]), len(self.counts))
        records = np.append(counts, np.ones(len(others), np.int64))
        return np.bincount(slots, records, len(self.counts)).astype(np.int64)

    def hot(self) -> list[HotKeyCount]:
        """The most frequent keys of each watched slot, by slot, the most frequent first."""
        if not self._found:
            return []
        hashes = np.concatenate([found for found, _ in self._found])
        counts = np.concatenate([counts for _, counts in self._found])
        hashes, places = np.unique(hashes, return_inverse=True)
        counts = np.bincount(places, counts).astype(np.int64)
        named = np.isin(hashes, np.fromiter(self._texts, np.uint64))
        hashes, counts = hashes[named], counts[named]
        slots = slots_of(hashes, len(self.counts))
        if self._carried is not None:
            counts = _whole(counts * self._carried[slots])
        return [
            HotKeyCount(self.step, int(slots[i]), self._texts[int(hashes[i])], int(counts[i]))
            for i in _leading(slots, counts)
        ]

    def _note_keys(self, batch: pa.RecordBatch, hashes: Array, rows: Array) -> None:
        found, first, counts = np.unique(hashes[rows], return_index=True, return_counts=True)
        self._found.append((found, counts))
        leading = _leading(slots_of(found, len(self.counts)), counts)
        new = [i for i in leading.tolist() if int(found[i]) not in self._texts]
        if not new:
            return
        some = batch.take(fixed_array(rows[first[new]], pa.int64()))
        codec = self._plan.codec
        keys = codec.as_tuples(self._plan.sent_keys(some))
        for place, key in zip(new, keys, strict=True):
            hash = int(found[place])
            self._texts[hash] = _text(codec.schema.names, key, hash)


def told_of(tallies: Sequence[Tally]) -> dict[str, Any]:
    """What a courier's tallies add to its report, as `Seen.from_json` takes it."""
    return {
        "loads": {tally.step: counts_to_text(tally.counts) for tally in tallies},
        "hot": [list(astuple(key)) for tally in tallies for key in tally.hot()],
    }


def counts_to_text(counts: Counts) -> str:
    """Counts as a report carries them: base64 of little-endian uint32.

    >>> counts_to_text(np.array([1, 0, 258]))
    'AQAAAAAAAAACAQAA'
    >>> counts_from_text('AQAAAAAAAAACAQAA').tolist()
    [1, 0, 258]
    """
    most = np.iinfo(np.uint32).max  # more than one task can send in one epoch
    return base64.b64encode(np.minimum(counts, most).astype("<u4").tobytes()).decode()


def counts_from_text(text: str) -> Counts:
    """Undo `counts_to_text`."""
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.int64)


@njit(cache=True, nogil=True)
def _count(slots, counts):  # type: ignore[no-untyped-def]
    for i in range(len(slots)):
        counts[slots[i]] += 1


def _whole(counts: Array) -> Counts:
    return np.rint(counts).astype(np.int64)


def _joined(hashes: list[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def _leading(slots: Array, counts: Array) -> Array:
    """Where the greatest counts of each slot are, by slot and from the greatest down."""
    order = np.lexsort((-counts, slots))
    ordered = slots[order]
    leading: Array = order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < TOLD]
    return leading


def _text(names: list[str], key: tuple[object, ...], hash: int) -> str:
    """The key as people read it. The driver adds up by it, so that cut ones must differ too."""
    text = ", ".join(f"{name}={shown(value)}" for name, value in zip(names, key, strict=True))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 20]}... ({hash:016x})"
    return text or "(the only key)"
