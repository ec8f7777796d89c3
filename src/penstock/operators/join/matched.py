"""Whether left rows of a left join have met a right row: a column of their bag.

Rows of a bag never change, so that undoing is cheap: a row whose mark changes is stored anew in its
place.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.operators.entry_groups import distinct
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags

MATCHED = "__matched"


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """The rows with one more column, or with another in the place of the one of this name."""
    at = batch.schema.get_field_index(name)
    if at >= 0:
        return batch.set_column(at, batch.schema.field(at), column)
    return batch.append_column(pa.field(name, column.type), column)


def mark(bags: Bags, entries: Array, ids: Array, matched: bool) -> None:
    """Mark rows of these (touched) entries; a row may be there more than once."""
    other = fixed_values(bags.values(MATCHED, ids)) != matched
    if not other.any():
        return
    changed, touched = np.unique(ids[other]), distinct(entries[other])
    marks = fixed_array(np.full(len(changed), matched), pa.bool_())
    new = bags.put(with_column(bags.rows(changed), MATCHED, marks))
    owner, kept = bags.ids(touched)
    place = np.minimum(np.searchsorted(changed, kept), len(changed) - 1)
    bags.keep(touched, owner, np.where(changed[place] == kept, new[place], kept))
