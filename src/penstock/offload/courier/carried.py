"""Counts the rows of burst workers as the records that hosts would have got without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.exchange.tally import Tally
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import Array
from penstock.state.keys.slot_map import SlotMap
from penstock.wire.report import Counts, HotKeyCount


class CarriedTally(Tally):
    """A tally that remembers the hash of every record, so that offloaded rows can be added."""

    def __init__(
        self, step: KeyedStep, watched: tuple[int, ...] = (), slots: SlotMap | None = None
    ) -> None:
        super().__init__(step, watched, slots)
        self._hashes: list[Array] = [np.zeros(0, np.uint64)]
        self._growth = np.ones(len(self.counts))
        """Ratio, for each slot, of records including offloaded ones to records sent."""

    def note(self, batch: pa.RecordBatch, hashes: Array) -> Array:
        """Count a batch that is about to be sent. Returns the slot of each record."""
        self._hashes.append(hashes)
        return super().note(batch, hashes)

    def add_carried(
        self, kept: int, carried: int, by_slot: Counts | None, made: CarriedTally, combined: bool
    ) -> None:
        """Add offloaded rows. Called once, at the end.

        `kept` rows made the records counted so far. Of `carried` rows, burst workers made the records that
        `made` has counted. `by_slot` holds the offloaded rows of each slot, if known. If couriers have
        `combined` their rows, the keys of both are counted.

        >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
        >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
        >>> own, made = (CarriedTally(KeyedStep("clicks", 2, plan)) for _ in range(2))
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
        self._growth = self.counts / np.maximum(1, sent)

    def hot(self) -> list[HotKeyCount]:
        """The most frequent keys of each watched slot. Their counts are scaled by the slot's growth."""
        return [
            replace(key, count=round(key.count * self._growth[key.slot])) for key in super().hot()
        ]

    def _united(self, made: CarriedTally) -> Counts:
        """Records by slot: those sent, and one for each key that was only offloaded."""
        own, counts = np.unique(np.concatenate(self._hashes), return_counts=True)
        others = np.setdiff1d(np.concatenate(made._hashes), own)
        slots = self._slots.of(np.concatenate([own, others]))
        records = np.append(counts, np.ones(len(others), np.int64))
        return np.bincount(slots, records, len(self.counts)).astype(np.int64)


def _whole(counts: Array) -> Counts:
    return np.rint(counts).astype(np.int64)
