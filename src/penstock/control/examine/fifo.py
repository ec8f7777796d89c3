"""Waiting records by the time slot of their arrival. The oldest record of a slot completes first.

Records carry no timestamps. Each slot is processed in order of arrival, so the counts of arrived and
completed records are enough to know when a completed record had arrived.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.control.examine.vitals import Floats

CRUMB = 1e-6
"""Fraction of a record below which a count is a rounding error and treated as 0."""

_NEVER = np.iinfo(np.int64).max
_CELLS = 1 << 24
"""Maximum number of cells in the table of waiting records: 128 MB for any number of slots."""
_FIRST_ROWS = 64


class Fifo:
    """Waiting records of every slot of a step. The unit of time is the time slot.

    The table is a ring with a row for each time slot. It grows while old records wait, up to `most_rows`.
    Records older than that count as if they had arrived in the oldest row. Rows without waiting records are
    all zero, so they need not be cleared before reuse.

    >>> fifo = Fifo(slots=1)
    >>> fifo.arrive(1, np.array([[5.0], [3.0]]), newest=2)
    >>> fifo.complete(at=4, counts=np.array([6.0])).tolist()  # 5 waited for 3, and 1 for 2
    [17.0]
    >>> fifo.backlog().tolist()
    [2.0]
    """

    def __init__(self, slots: int, most_rows: int = 6000) -> None:
        self._most = max(_FIRST_ROWS, min(most_rows, _CELLS // max(slots, 1)))
        self._waiting = np.zeros((_FIRST_ROWS, slots))
        self._head = np.full(slots, _NEVER)
        """Time slot per slot before which none of its records waits."""
        self._totals = np.zeros((2, slots))
        """Total of arrived and of completed records, by slot."""
        self._latency = np.zeros(slots)
        self._newest, self._oldest = -1, _NEVER

    def resize(self, slots: int) -> None:
        """Change the number of slots. Nothing waits in new ones."""
        head = np.full(slots, _NEVER)
        kept = min(slots, len(self._head))
        head[:kept] = self._head[:kept]
        self._head, self._latency = head, np.zeros(slots)
        self._waiting, self._totals = resized(self._waiting, slots), resized(self._totals, slots)

    def arrive(self, first: int, counts: Floats, newest: int) -> None:
        """Add `counts[j, slot]` records that arrived in time slot `first + j`.

        `newest` is the present time slot. It never decreases. Records of a later time slot count as
        arrived in it; records of an earlier one are added in the past.
        """
        self._make_room(min(first, newest), newest)
        floor = newest - len(self._waiting) + 1
        oldest = _arrive(self._waiting, self._head, self._totals, first, counts, floor, newest)
        self._oldest, self._newest = min(self._oldest, oldest), newest

    def complete(self, at: float, counts: Floats) -> Floats:
        """Complete the oldest records of each slot. Returns the sum of their latencies, in time slots.

        A record of time slot m has latency `at - m`, and at least 0. Completed records beyond the known
        arrivals have latency 0, and later arrivals are set off against them. The next call overwrites the
        result.
        """
        self._oldest = _complete(
            self._waiting, self._head, self._totals, self._newest, at, counts, self._latency
        )
        return self._latency

    def backlog(self) -> Floats:
        """Number of records that have arrived and are not completed, by slot."""
        left = self._totals[0] - self._totals[1]
        return np.where(left > CRUMB, left, 0.0)

    def _make_room(self, first: int, newest: int) -> None:
        """Make room for all time slots up to `newest`, from `first` or the oldest waiting record on."""
        wanted = newest - min(self._oldest, first) + 1
        rows = len(self._waiting)
        if wanted <= rows:
            return
        larger = min(self._most, max(wanted, 2 * rows))
        if larger > rows:
            waiting = np.zeros((larger, self._waiting.shape[1]))
            if self._oldest != _NEVER:
                kept = np.arange(max(self._oldest, self._newest - rows + 1), self._newest + 1)
                waiting[kept % larger] = self._waiting[kept % rows]
            self._waiting = waiting
        floor = newest - len(self._waiting) + 1
        if self._oldest < floor:
            _fold(self._waiting, self._head, self._oldest, min(self._newest, floor - 1), floor)
            self._oldest = floor


def resized(values: npt.NDArray[Any], slots: int) -> npt.NDArray[Any]:
    """The values with another number of slots, in their last axis. New slots have 0."""
    result = np.zeros((*values.shape[:-1], slots), values.dtype)
    kept = min(slots, values.shape[-1])
    result[..., :kept] = values[..., :kept]
    return result


@njit(cache=True, nogil=True)
def _arrive(waiting, head, totals, first, counts, floor, newest):  # type: ignore[no-untyped-def]
    rows, slots = waiting.shape
    oldest = _NEVER
    for j in range(len(counts)):
        m = min(max(first + j, floor), newest)
        row = waiting[m % rows]
        for k in range(slots):
            new = counts[j, k]
            if new > 0:
                owed = totals[1, k] - totals[0, k]
                totals[0, k] += new
                if owed > 0:
                    new -= owed
                if new > CRUMB:
                    row[k] += new
                    head[k] = min(head[k], m)
                    oldest = min(oldest, m)
    return oldest


@njit(cache=True, nogil=True)
def _complete(waiting, head, totals, newest, at, counts, latency):  # type: ignore[no-untyped-def]
    rows, slots = waiting.shape
    oldest = _NEVER
    for k in range(slots):
        need, total, m = counts[k], 0.0, head[k]
        totals[1, k] += need
        row = m % rows
        while m <= newest:
            here = waiting[row, k]
            if here > 0.0:
                take = min(here, need)
                total += take * max(at - m, 0.0)
                need -= take
                if here - take > CRUMB:
                    waiting[row, k] = here - take
                    break
                waiting[row, k] = 0.0
            m += 1
            row = row + 1 if row + 1 < rows else 0
        head[k] = m if m <= newest else _NEVER
        latency[k] = total
        oldest = min(oldest, head[k])
    return oldest


@njit(cache=True, nogil=True)
def _fold(waiting, head, oldest, last, floor):  # type: ignore[no-untyped-def]
    """Move the records that wait in time slots `oldest` to `last` to time slot `floor`."""
    rows, slots = waiting.shape
    for k in range(slots):
        old = 0.0
        for m in range(oldest, last + 1):
            old += waiting[m % rows, k]
            waiting[m % rows, k] = 0.0
        if old > 0:
            waiting[floor % rows, k] += old
            head[k] = floor
