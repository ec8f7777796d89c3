"""Patches: partial rows in a delta, for maps, lists and large values of which only a part has changed.

A map or list column `c` has two companion columns in files. `c~patch` says that a row has only the changes,
and `c~gone` what was removed. A patch is applied to an older row of the same key as follows:

| column | `c`                          | `c~gone`              | complete row                        |
|--------|------------------------------|-----------------------|-------------------------------------|
| map    | pairs that are new or differ | keys that were        | the old pairs, without the removed  |
|        |                              | removed               | keys, updated with these pairs      |
| list   | elements that were appended  | number of elements    | the old elements, then these,       |
|        |                              | removed at the front  | without the first `c~gone` elements |

A key that was removed and added again is in both columns, so that it becomes the last of the map, as in
memory. A patch applied to a patch is again a patch, so files can be merged before the complete row is read.

A field `v.f` of text or bytes has one companion, `v.__same~f`. Where it is true, the value is left out,
because it is that of the older row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.arrays import (
    Array,
    filled_values,
    fixed_array,
    fixed_values,
    one_chunk,
    ranges,
    valid_mask,
)

PATCH, GONE = "~patch", "~gone"
_SAME = "__same~"
_PRESENT = "__present"
SMALL = 16
"""Number of elements up to which a map or list is always written as a whole, to spare readers the folding."""
LARGE = 256
"""Characters or bytes from which a value that has not changed is left out."""


def patch_fields(name: str, type: pa.DataType) -> list[pa.Field]:
    """The fields of a map or list column and its companion columns.

    >>> [str(field.type) for field in patch_fields("l.__list", pa.list_(pa.string()))]
    ['list<item: string>', 'bool', 'int64']
    """
    gone = pa.list_(type.key_type) if pa.types.is_map(type) else pa.int64()
    return [pa.field(name, type), pa.field(name + PATCH, pa.bool_()), pa.field(name + GONE, gone)]


def same_fields(name: str, type: pa.DataType) -> list[pa.Field]:
    """The fields of a column of text or bytes and its companion column.

    >>> [field.name for field in same_fields("photo.bytes", pa.binary())]
    ['photo.bytes', 'photo.__same~bytes']
    """
    variable, _, field = name.partition(".")
    return [pa.field(name, type), pa.field(f"{variable}.{_SAME}{field}", pa.bool_())]


def same_companions(names: Sequence[str]) -> dict[str, str]:
    """Columns of text or bytes among these -> their companions."""
    split = ((name, name.partition(".")) for name in names)
    return {
        f"{variable}.{rest.removeprefix(_SAME)}": name
        for name, (variable, _, rest) in split
        if rest.startswith(_SAME)
    }


def has_parts(schema: pa.Schema) -> bool:
    """Whether rows of this schema may have only a part of a map or list."""
    return bool(_patched(schema))


def has_patches(schema: pa.Schema) -> bool:
    """Whether rows of this schema may be patches."""
    return has_parts(schema) or bool(same_companions(schema.names))


def unresolved(table: pa.Table) -> Array:
    """A mask of the rows that are patches in some column, and so need the older row of their key."""
    mask = np.zeros(table.num_rows, np.bool_)
    for name in _patched(table.schema):
        mask |= _true(table, name + PATCH)
    for same in same_companions(table.schema.names).values():
        mask |= _true(table, same)
    return mask


def fold(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Apply the patches in the newer rows to the older rows, row by row.

    Row i of both tables has the same key, and both have the same columns. All that is not a patch is
    taken from the newer table. An older row that is not present counts as empty. To apply several patches
    to large rows, fold the patches into one first.

    >>> schema = pa.schema([pa.field("__present", pa.bool_()), *patch_fields("l.__list",
    ...     pa.list_(pa.string()))])
    >>> older = pa.Table.from_pylist([{"__present": True, "l.__list": ["a", "b"]}], schema)
    >>> newer = {"__present": True, "l.__list": ["c"], "l.__list~patch": True, "l.__list~gone": 1}
    >>> fold(older, pa.Table.from_pylist([newer], schema)).column("l.__list").to_pylist()
    [['b', 'c']]
    """
    folded = newer
    for name in _patched(newer.schema):
        rows = np.flatnonzero(_true(newer, name + PATCH) & _true(newer, _PRESENT))
        if not len(rows):
            continue
        there = _true(older, _PRESENT)[rows]
        before = _Parts(older, name, rows, there)
        arrays = _folded(before, _Parts(newer, name, rows, np.ones(len(rows), np.bool_)))
        for companion, array in zip((name, name + PATCH, name + GONE), arrays, strict=True):
            folded = _replaced(folded, companion, rows, array)
    for name, same in same_companions(newer.schema.names).items():
        rows = np.flatnonzero(_true(newer, same) & _true(newer, _PRESENT))
        if len(rows):
            taken = fixed_array(rows, pa.int64())
            folded = _replaced(folded, name, rows, one_chunk(older.column(name)).take(taken))
            still = fixed_array(_true(older, same)[rows], pa.bool_())
            folded = _replaced(folded, same, rows, still)
    return folded


def with_older_values(rows: pa.Table, numbers: Array) -> pa.Table:
    """The first of the rows of each number, with values that it leaves out from the first row that has them.

    Rows are sorted from new to old. This is `fold` for rows without maps and lists, and for any number of
    older rows at once.
    """
    first = _first(numbers, np.arange(rows.num_rows))
    chosen = first[first >= 0]
    table = rows.take(fixed_array(chosen, pa.int64()))
    for name, same in same_companions(rows.schema.names).items():
        source = _first(numbers, np.flatnonzero(~_true(rows, same)))[numbers[chosen]]
        open = source < 0
        taken = fixed_array(np.where(open, chosen, source), pa.int64())
        for column, array in (
            (name, rows.column(name).take(taken)),
            (same, fixed_array(open, pa.bool_(), _true(table, _PRESENT))),
        ):
            at = rows.schema.get_field_index(column)
            table = table.set_column(at, rows.schema.field(at), array)
    return table


def _first(numbers: Array, rows: Array) -> Array:
    """Number -> the first of these rows that has it; -1 if none has."""
    first = np.full(int(numbers.max()) + 1, -1, np.int64)
    first[numbers[rows[::-1]]] = rows[::-1]
    return first


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the companion columns of `schema` to a table from a file that has only complete rows."""
    for name in _patched(schema):
        names = table.schema.names
        if name not in names:
            continue
        fields = patch_fields(name, schema.field(name).type)
        arrays = whole_companions(fields, _true(table, _PRESENT))
        for at, (field, array) in enumerate(zip(fields[1:], arrays, strict=True), 1):
            if field.name not in names:
                table = table.add_column(names.index(name) + at, field, array)
    for name, same in same_companions(schema.names).items():
        names = table.schema.names
        if name in names and same not in names:
            none = whole_companion(_true(table, _PRESENT))
            table = table.add_column(names.index(name) + 1, schema.field(same), none)
    return table


def whole_companions(fields: Sequence[pa.Field], present: Array) -> list[pa.Array]:
    """Companion columns for complete rows. `fields` are those of `patch_fields`."""
    return [whole_companion(present), pa.nulls(len(present), fields[2].type)]


def whole_companion(present: Array) -> pa.Array:
    """A companion column that says that rows are complete."""
    return fixed_array(np.zeros(len(present), np.bool_), pa.bool_(), present)


def _patched(schema: pa.Schema) -> list[str]:
    """Names of the columns that have companions. Fields of value state never have such names."""
    names = set(schema.names)
    return [n for n in schema.names if n.partition(".")[2][:2] == "__" and n + PATCH in names]


class _Parts:
    """Some rows of a map or list column with its companions. Rows that are not `there` are empty."""

    def __init__(self, table: pa.Table, name: str, rows: Array, there: Array) -> None:
        taken = fixed_array(rows, pa.int64())
        self.items = one_chunk(table.column(name)).take(taken)
        self.patch = _true(table, name + PATCH)[rows] & there
        self.gone = one_chunk(table.column(name + GONE)).take(taken)
        self.there = there


def _folded(older: _Parts, newer: _Parts) -> tuple[pa.Array, pa.Array, pa.Array]:
    fold = _folded_maps if pa.types.is_map(newer.items.type) else _folded_lists
    items, gone = fold(older, newer)
    return items, fixed_array(older.patch, pa.bool_()), gone


def _folded_lists(older: _Parts, newer: _Parts) -> tuple[pa.Array, pa.Array]:
    old_starts, old_counts = _spans(older.items, older.there)
    new_starts, new_counts = _spans(newer.items, newer.there)
    cut = filled_values(newer.gone)
    # A patch cannot know how many older elements there are: it keeps all of its own, and adds up the counts.
    gone = fixed_array(cut + filled_values(older.gone), pa.int64(), older.patch)
    cut = np.where(older.patch, 0, np.minimum(cut, old_counts + new_counts))
    old_cut = np.minimum(cut, old_counts)
    starts = np.stack([old_starts + old_cut, new_starts + cut - old_cut], 1)
    starts[:, 1] += len(older.items.values)
    counts = np.stack([old_counts - old_cut, new_counts - cut + old_cut], 1)
    values = pa.concat_arrays([older.items.values, newer.items.values])
    chosen = values.take(fixed_array(ranges(starts.ravel(), counts.ravel()), pa.int64()))
    return _listed(older.items.type, counts.sum(1), chosen), gone


def _folded_maps(older: _Parts, newer: _Parts) -> tuple[pa.Array, pa.Array]:
    rows = len(older.there)
    pairs = [_elements(part.items, part.there) for part in (older, newer)]
    gone = [_elements(older.gone, older.patch), _elements(newer.gone, newer.there)]
    ids = _ids([entries.field(0) for _, entries in pairs] + [keys for _, keys in gone],
               [row for row, _ in pairs + gone])  # fmt: skip
    old, new, old_gone, new_gone = ids

    kept = np.flatnonzero(~np.isin(old, new_gone))
    order = np.argsort(new, kind="stable")
    at = np.minimum(np.searchsorted(new[order], old[kept]), max(len(new) - 1, 0))
    again = new[order[at]] == old[kept] if len(new) else np.zeros(len(kept), np.bool_)
    chosen = kept.copy()
    chosen[again] = len(old) + order[at[again]]
    added = np.flatnonzero(~np.isin(new, old[kept]))
    chosen = np.concatenate([chosen, len(old) + added])
    of_row = np.concatenate([pairs[0][0][kept], pairs[1][0][added]])
    by_row = np.argsort(of_row, kind="stable")
    entries = pa.concat_arrays([pairs[0][1], pairs[1][1]])
    items = _listed(
        older.items.type,
        np.bincount(of_row, minlength=rows),
        entries.take(fixed_array(chosen[by_row], pa.int64())),
    )

    fresh = np.flatnonzero(~np.isin(new_gone, old_gone) & older.patch[gone[1][0]])
    of_row = np.concatenate([gone[0][0], gone[1][0][fresh]])
    by_row = np.argsort(of_row, kind="stable")
    chosen = np.concatenate([np.arange(len(old_gone)), len(old_gone) + fresh])[by_row]
    keys = pa.concat_arrays([gone[0][1], gone[1][1]]).take(fixed_array(chosen, pa.int64()))
    counts = np.bincount(of_row, minlength=rows)
    return items, _listed(older.gone.type, counts, keys, older.patch)


def _spans(lists: pa.Array, there: Array) -> tuple[Array, Array]:
    """Start and number of each row's elements among the elements of all rows."""
    offsets = fixed_values(lists.offsets).astype(np.int64)
    valid = valid_mask(lists)
    counts = np.where(there if valid is None else there & valid, np.diff(offsets), 0)
    return offsets[:-1], counts


def _elements(lists: pa.Array, there: Array) -> tuple[Array, pa.Array]:
    """The row of each element, and the elements, of all rows that are `there`."""
    starts, counts = _spans(lists, there)
    values = lists.values
    if pa.types.is_map(lists.type):
        kind = lists.type
        fields = [kind.key_field, kind.item_field]
        values = pa.StructArray.from_arrays([lists.keys, lists.items], fields=fields)
    taken = values.take(fixed_array(ranges(starts, counts), pa.int64()))
    return np.repeat(np.arange(len(counts)), counts), taken


def _listed(
    type: pa.DataType, counts: Array, values: pa.Array, valid: Array | None = None
) -> pa.Array:
    """A list or map array with counts[i] values in row i."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    bits = None if valid is None else fixed_array(valid, pa.bool_()).buffers()[1]
    buffers = [bits, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(type, len(counts), buffers, children=[values])


def _ids(keys: Sequence[pa.Array], rows: Sequence[Array]) -> list[Array]:
    """A number for each key of each row. Equal keys of the same row have the same number."""
    codes, kinds = _codes(pa.concat_arrays(list(keys)))
    ends = np.cumsum([len(part) for part in keys])[:-1]
    parts = np.split(np.concatenate(rows) * kinds + codes, ends)
    return [part.astype(np.int64) for part in parts]


def _codes(keys: pa.Array) -> tuple[Array, int]:
    """A number for each key, the same for equal keys, and an upper bound of these numbers.

    0.0 and -0.0 are equal, and so are all NaNs.
    """
    if pa.types.is_struct(keys.type):
        codes, kinds = fixed_values(keys.is_valid()).astype(np.int64), 2
        for field in keys.flatten():
            more, count = _codes(field)
            distinct, codes = np.unique(codes * count + more, return_inverse=True)
            kinds = len(distinct)
        return codes, kinds
    if pa.types.is_floating(keys.type):
        keys = pc.add(keys.cast(pa.float64()), 0.0)
    encoded = keys.dictionary_encode(null_encoding="encode")
    return fixed_values(encoded.indices).astype(np.int64), len(encoded.dictionary)


def _replaced(table: pa.Table, name: str, rows: Array, array: pa.Array) -> pa.Table:
    """The table with the values of a column replaced in these rows."""
    at = table.schema.get_field_index(name)
    choice = np.arange(table.num_rows)
    choice[rows] = table.num_rows + np.arange(len(rows))
    both = pa.concat_arrays([one_chunk(table.column(at)), array])
    return table.set_column(at, table.schema.field(at), both.take(fixed_array(choice, pa.int64())))


def _true(table: pa.Table, name: str) -> Array:
    """A mask that is True where a boolean column is true, and False at nulls."""
    return filled_values(one_chunk(table.column(name)))
