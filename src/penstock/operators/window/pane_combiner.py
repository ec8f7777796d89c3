"""Combining rows by key and pane, at about the cost of combining them by key alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.combiner import Combiner
from penstock.operators.entry_groups import changes
from penstock.operators.window import kernels
from penstock.operators.window.windows import event_times
from penstock.state.arrays import Array, fixed_array, fixed_values, grown
from penstock.state.keys.codec import Keys, int_keys
from penstock.state.keys.index import IntIndex, key_index

if TYPE_CHECKING:
    from penstock.operators.window.plan import WindowPlan

_CELLS = 1 << 20
"""Cells that a grid of keys by panes may have in any case."""
_CELLS_PER_ROW = 4
"""Further cells of the grid for each row added. A larger grid would be mostly empty."""
_LEAST = 1024
"""Initial number of keys in the grid."""
_PIECE = 1 << 16
"""Rows that are combined at once, so that intermediate arrays stay in the CPU caches."""


class PaneCombiner(Combiner):
    """A combiner of rows whose column `start_name` holds the start of their pane.

    Keys and panes are numbered separately, then pairs of their numbers are. That is faster than looking
    up the bytes of a key of several columns.
    """

    def __init__(self, plan: WindowPlan, always: bool = False) -> None:
        super().__init__(plan.inner, always)
        self._start_name, self._user_codec = plan.start_name, plan.user_codec
        self._users = key_index(plan.user_codec.layout)
        self._panes = IntIndex()
        self._index = self._pairs = PairIndex()  # type: ignore[assignment]

    def finish_panes(self) -> tuple[list[pa.Array], Array, pa.RecordBatch]:
        """Return key columns, pane starts (microseconds) and combined states, and empty the combiner."""
        pairs, partials = self.finish()
        assert pairs.ints is not None
        users = self._users.keys(np.arange(self._users.size))
        taken = fixed_array(pairs.ints >> 32, pa.int64())
        columns = [column.take(taken) for column in self._user_codec.decode(users)]
        starts = self._panes.keys(np.arange(self._panes.size)).ints
        assert starts is not None
        type = self.plan.inputs[0].field(self._start_name).type
        panes = event_times(fixed_array(starts[pairs.ints & 0xFFFF_FFFF], type))
        self._users.clear()
        self._panes.clear()
        return columns, panes, partials

    def _add(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _PIECE):
            super()._add(batch.slice(start, _PIECE))

    def _entries(self, batch: pa.RecordBatch) -> Array:
        room = self._pairs.room - self._pairs.size
        self._users.reserve(self._users.size + min(room, batch.num_rows))
        users = self._users.upsert(self._user_codec.encode(batch))
        starts = fixed_values(batch.column(self._start_name))
        # neighbours are mostly in the same pane: look it up only where it changes
        runs = np.flatnonzero(changes(starts))
        panes = self._panes.upsert(int_keys(starts[runs]))
        return self._pairs.upsert(users, self._users.size, runs, panes, self._panes.size)


class PairIndex:
    """An index from pairs of small numbers to dense entry numbers, like `KeyIndex` for keys.

    A grid of panes by keys finds a pair with one lookup. Where the grid would be mostly empty, pairs are
    looked up in a hash index instead.
    """

    size: int
    """Number of pairs."""
    room: int
    """Number of pairs for which there is room."""

    def __init__(self) -> None:
        self.room, self._numbers = 0, np.zeros(0, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all pairs."""
        self.size = self._rows = 0
        self._grid = np.full((1, _LEAST), -1, np.int32)
        self._hashed: IntIndex | None = None

    def reserve(self, entries: int) -> None:
        """Make room for this many pairs in total."""
        if entries > self.room:
            self._numbers = grown(self._numbers, self.size, entries)
            self.room = entries

    def keys(self, entries: Array) -> Keys:
        """The pairs, as (user << 32 | pane)."""
        return int_keys(self._numbers[entries])

    def upsert(
        self, users: Array, user_count: int, runs: Array, panes: Array, pane_count: int
    ) -> Array:
        """Add pairs and return the entry of each row's pair. Row i has users[i]; rows from runs[j] on
        have panes[j]."""
        self._rows += len(users)
        self.reserve(self.size + min(len(users), user_count * pane_count))
        self._spread_out(user_count, pane_count)
        if self._hashed is not None:
            before = self.size
            out: Array = self._hashed.upsert(int_keys(kernels.pairs(users, runs, panes)))
            self.size = self._hashed.size
            fresh = self._hashed.keys(np.arange(before, self.size)).ints
            assert fresh is not None
            self._numbers[before : self.size] = fresh
            return out
        out, self.size = kernels.find_pairs(
            users, runs, panes, self._grid, self._numbers, self.size
        )
        return out

    def _spread_out(self, user_count: int, pane_count: int) -> None:
        """Enlarge the grid as needed, or switch to the hash index."""
        height, width = self._grid.shape
        if self._hashed is not None or (user_count <= width and pane_count <= height):
            return
        if user_count * pane_count > _CELLS + _CELLS_PER_ROW * self._rows:
            self._hashed = IntIndex()
            self._hashed.upsert(self.keys(np.arange(self.size)))
            return
        wide = width if user_count <= width else max(user_count, 2 * width)
        high = height if pane_count <= height else max(pane_count, 2 * height)
        grid = np.full((high, wide), -1, np.int32)
        grid[:height, :width] = self._grid
        self._grid = grid
