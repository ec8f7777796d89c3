"""A live courier's notes about one epoch, for its report to the driver when the epoch has passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.courier.witness import Witness
from penstock.exchange.aside import Aside
from penstock.exchange.step_work import StepWork
from penstock.exchange.tally import Tally
from penstock.plan.steps import FlowPlan
from penstock.state.arrays import Array, fixed_values
from penstock.state.keys.slot_map import SlotMap
from penstock.wire.report import Offloaded, Routed, Seen, Usage

_PER_OCTAVE = 8
"""Latency buckets from a value to its double: each is 9 % wide."""
_BUCKETS = 40 * _PER_OCTAVE
_FOLDED = 4_096
"""Number of latencies that are collected before they are put into buckets."""
_TO_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


class EpochNotes:
    """Rows read and sent, rows set aside, and latencies, in one epoch of one courier."""

    def __init__(self, flow: FlowPlan, keep_late: bool, slots: Mapping[str, SlotMap]) -> None:
        """`slots` are those of each keyed step in this run."""
        self.witness = Witness(flow.sources)
        self.aside = Aside()
        self.work = StepWork(flow.on_error, keep_late, self.aside)
        self.tallies = {step.id: Tally(step, slots=slots[step.id]) for step in flow.keyed}
        self.newest: dict[tuple[int, str], int] = {}
        """(source, partition) -> newest event time, in milliseconds since 1970."""
        self.rows_read: dict[int, dict[str, int]] = {}
        """Source -> partition -> number of rows read."""
        self.lag_ms = 0.0
        """Age of the newest row of the last poll with rows, in milliseconds."""
        self._latencies = np.zeros(_BUCKETS, np.int64)
        self._unfolded: list[Array] = []
        """Latencies in microseconds that are in no bucket yet."""
        self._rows = 0
        """Number of latencies in `_unfolded`."""
        self._offloaded: list[Offloaded] = []
        self._used = Usage()
        self._routed: dict[str, Routed] = {}

    def read(self, source: int, partition: str, rows: int) -> None:
        """Count rows that were read from a partition."""
        here = self.rows_read.setdefault(source, {})
        here[partition] = here.get(partition, 0) + rows

    def note_times(self, source: int, newest: Mapping[str, int]) -> None:
        """Record the newest event times of a source's partitions, in milliseconds."""
        for name, time_ms in newest.items():
            place = (source, name)
            self.newest[place] = max(self.newest.get(place, time_ms), time_ms)

    def left(self, arrived_us: Iterable[Array], left_us: float) -> None:
        """Record the latencies of rows that arrived at these times and left at `left_us`, in microseconds."""
        for times in arrived_us:
            self._unfolded.append(left_us - times)
            self._rows += len(times)
        if self._rows > _FOLDED:
            self._fold()

    def offload(self, offloaded: Offloaded | None, used: Usage) -> None:
        """Add what burst workers did for a step, and what they used."""
        if offloaded is not None:
            self._offloaded.append(offloaded)
        self._used += used

    def route(self, step: str, rows: int, combined: bool) -> None:
        """Count rows of a step that could have been redirected to burst workers."""
        before = self._routed.get(step, Routed(0, False))
        self._routed[step] = Routed(before.rows + rows, before.combined or combined)

    def _fold(self) -> None:
        octaves = np.log2(np.maximum(np.concatenate([np.empty(0), *self._unfolded]), 1.0))
        buckets = np.minimum((octaves * _PER_OCTAVE).astype(np.int64), _BUCKETS - 1)
        self._latencies += np.bincount(buckets, minlength=_BUCKETS)
        self._unfolded, self._rows = [], 0

    def seen(self) -> Seen:
        """The notes as a report."""
        self._fold()
        filled = np.flatnonzero(self._latencies)
        middles = np.exp2((filled + 0.5) / _PER_OCTAVE)
        return replace(
            self.witness.seen(),
            event_ms=tuple((*place, time) for place, time in sorted(self.newest.items())),
            late=self.aside.late_counts(),
            loads={step: tally.counts for step, tally in self.tallies.items()},
            hot=tuple(key for tally in self.tallies.values() for key in tally.hot()),
            offloaded=tuple(self._offloaded),
            used=self._used,
            routed=self._routed,
            latencies_us=tuple(middles.astype(np.int64).tolist()),
            latency_counts=tuple(self._latencies[filled].tolist()),
        )


def arrivals_us(batch: pa.RecordBatch, column: str | None, now_us: float) -> Array:
    """Arrival time of each row, in microseconds since 1970: from a column, or `now_us` without one."""
    if column is None:
        return np.full(batch.num_rows, now_us)
    times = batch.column(column)
    if times.null_count:
        times = times.drop_null()
    arrived_us: Array = fixed_values(times) * _TO_US[times.type.unit]
    return arrived_us
