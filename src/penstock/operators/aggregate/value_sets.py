"""Sets of values in a table: bags that know whether they hold a value.

The bag is the state. Beside it is an index of all values, which says quickly what is new; it
forgets nothing on a rollback, but knows for each entry the cell of the bag that it has seen: where
the table holds another one, the entry's values are put in anew, under another number.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import set_kernels as kernels
from penstock.operators.aggregate.value_index import MEMBERS, ValueIndex
from penstock.state.arrays import Array, fixed_array, fixed_values, grown
from penstock.state.table.bags import Bags

_SPARE = 1 << 16
"""Values of sets that are gone which are never worth cleaning up."""


class ValueSets(Bags):
    """The sets of one aggregate, by entry.

    >>> from penstock.state.keys.codec import KeyCodec
    >>> from penstock.state.table.table import ColumnTable
    >>> codec = KeyCodec(pa.schema([("user", pa.string())]))
    >>> sets = ValueSets("seen")
    >>> table = ColumnTable(codec, [sets.column], slots=16)
    >>> sets.bind(table)
    >>> entries = table.upsert(codec.encode(pa.record_batch({"user": ["a", "a", "b"]})))
    >>> added, bits = sets.add(entries, np.array([7, 7, 7]), np.array([1, 3, 1], np.uint8))
    >>> added.tolist(), bits.tolist()
    ([0, 0, 1], [1, 2, 1])
    """

    def __init__(self, name: str) -> None:
        # names of bags have no dots
        super().__init__(name.replace("%", "%25").replace(".", "%2e"), MEMBERS)
        self._drop()

    def add(self, entries: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        """Put values into the sets of entries, which are touched already.

        Returns the entries of those that brought something new, and the bits that were new.
        """
        if not len(entries):
            return entries, bits
        self._follow()
        try:
            return self._added(entries, values, bits)
        except BaseException:
            # the index may know values that the bags do not hold
            self._drop()
            raise

    def tidy(self) -> None:
        """Forget what no entry holds, if it prevails, also in the index."""
        super().tidy()
        if self._index.used > 2 * int(self._cells[:, 1].sum()) + _SPARE:
            self._drop()

    @property
    def nbytes(self) -> int:
        """Bytes held, slack and index included."""
        known = self._known.nbytes + self._numbers.nbytes
        return super().nbytes + self._index.nbytes + known

    def _added(self, entries: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        cells = self._cells
        out = np.empty(len(entries), np.int64)
        count = kernels.stale(entries, cells, self._known, self._numbers, self._next, out)
        if count:
            self._learn_anew(out[:count])
        rows, news = self._index.put(self._numbers[entries], values, bits)
        added = entries[rows]
        columns = [fixed_array(values[rows], pa.int64()), fixed_array(news, pa.uint8())]
        self.append(added, pa.RecordBatch.from_arrays(columns, schema=MEMBERS))
        kernels.learn(added, cells, self._known)
        return added, news

    def _drop(self) -> None:
        self._index, self._next = ValueIndex(), 1
        self._known, self._numbers = np.zeros((0, 2), np.int64), np.zeros(0, np.int32)
        self._seen = -1

    def _follow(self) -> None:
        """Keep up with the table: it has more entries, or numbers them and their rows anew."""
        seen = self.renumberings + self._bound.renumberings
        if seen != self._seen or self._next > np.iinfo(np.int32).max // 2:
            self._drop()
            self._seen = seen
        size = len(self._cells)
        if size > len(self._numbers):
            self._known = grown(self._known, len(self._known), size + size // 2)
            self._numbers = grown(self._numbers, len(self._numbers), size + size // 2)

    def _learn_anew(self, entries: Array) -> None:
        self._next += len(entries)
        owner, ids = self.ids(entries)
        if len(ids):
            values = fixed_values(self.values("value", ids))
            bits = fixed_values(self.values("where", ids))
            self._index.put(self._numbers[entries[owner]], values, bits)
