"""Bags compared with plain lists, under any sequence of changes, undos, moves and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError, ProtocolError
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.store.merging import newest, whole
from penstock.state.table import bags as module
from penstock.state.table.bags import Bags
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable

SLOTS = 8
ALL = np.arange(SLOTS)
KEY = pa.schema([("k", pa.int64())])
ROW = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("price", pa.decimal128(20, 3)),
        ("items", pa.list_(pa.int32())),
    ]
)
Model = dict[int, list[int]]


def rows_of(numbers: list[int]) -> pa.RecordBatch:
    rows = [
        {"n": n, "text": None if n % 4 == 0 else "x" * (n % 7), "price": n, "items": [n] * (n % 3)}
        for n in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, ROW)


def made() -> tuple[ColumnTable, Bags, Bags]:
    """A table with two columns of bags and another column."""
    bags, others = Bags("rows", ROW), Bags("others", pa.schema([("n", pa.int64())]))
    columns = [bags.column, Column("total", pa.int64()), others.column]
    table = ColumnTable(KeyCodec(KEY), columns, SLOTS)
    bags.bind(table)
    others.bind(table)
    return table, bags, others


class Twin:
    """Bags, and the dict of lists that they must equal."""

    def __init__(self) -> None:
        self.table, self.bags, self.others = made()
        self.codec = self.table.codec
        self.model: Model = {}
        self.before: Model = {}
        self.cuts: list[Model] = [{}]
        """As of the newest durable cut, and of all cuts since."""
        self.pending: list[pa.Table] = []
        """Deltas of cuts that are not durable."""
        self.marks: list[tuple[int, Model]] = []
        self.stored: list[pa.Table] = []
        self.away = False
        self.next = 0

    def keys(self, numbers: list[int]) -> Keys:
        return self.codec.encode(pa.RecordBatch.from_pydict({"k": numbers}, KEY))

    def bring(self, numbers: list[int]) -> None:
        """Install evicted entries that are needed now, as a host does before it applies rows."""
        if self.away:
            keys = self.keys(numbers)
            missing = keys.take(np.flatnonzero(~self.table.known(keys)))
            stored = self.codec.to_storage(missing)
            rows = self.files()
            self.table.install(
                missing, rows.filter(pc.is_in(rows.column("__key"), value_set=stored))
            )

    def files(self) -> pa.Table:
        return whole(newest(reversed(self.stored), self.table.schema, self.codec))

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    # -- operations

    def append(self, numbers: list[int]) -> None:
        """Append one row to the bag of each number, and more to the first one's."""
        self.bring(numbers)
        wanted = numbers + numbers[:1] * (sum(numbers) % 25)
        rows = self.fresh(len(wanted))
        entries = self.table.upsert(self.keys(wanted))
        self.bags.append(entries, rows_of(rows))
        self.others.append(entries, rows_of(rows).select(["n"]))
        for number, row in zip(wanted, rows, strict=True):
            self.model[number] = [*self.model.get(number, []), row]

    def replace(self, numbers: list[int]) -> None:
        """Replace whole bags, some with no rows, with rows in any order of owners."""
        distinct = sorted(set(numbers))
        self.bring(distinct)
        entries = self.table.upsert(self.keys(distinct))
        owner = [at % max(1, len(distinct) - 1) for at in range(3 * len(distinct))]
        rows = self.fresh(len(owner))
        self.bags.replace(entries, np.array(owner, np.int64), rows_of(rows))
        ids = self.others.put(rows_of(rows).select(["n"]))
        self.others.keep(entries, np.array(owner, np.int64), ids)
        for number in distinct:
            self.model[number] = []
        for at, row in zip(owner, rows, strict=True):
            self.model[distinct[at]].append(row)

    def forget_first(self, numbers: list[int]) -> None:
        self._keep(numbers, lambda at: at >= sum(numbers) % 4)

    def forget_some(self, numbers: list[int]) -> None:
        self._keep(numbers, lambda at: (at + sum(numbers)) % 3 > 0)

    def _keep(self, numbers: list[int], kept: Callable[[int], bool]) -> None:
        distinct = [n for n in sorted(set(numbers)) if n in self.model]
        self.bring(distinct)
        entries = self.table.find(self.keys(distinct))
        self.table.touch(entries)
        for bags in (self.bags, self.others):
            owner, ids = bags.ids(entries)
            place = np.concatenate([np.arange(c) for c in bags.counts(entries)] or [owner])
            mask = np.array([kept(at) for at in place.tolist()], np.bool_)
            bags.keep(entries, owner[mask], ids[mask])
        for number in distinct:
            rows = self.model[number]
            self.model[number] = [row for at, row in enumerate(rows) if kept(at)]

    def touch(self, numbers: list[int]) -> None:
        """Change another column of these entries."""
        known = [n for n in numbers if n in self.model]
        self.bring(known)
        entries = self.table.find(self.keys(known))
        self.table.touch(entries)
        self.table.column("total")[entries] += 1

    def remove(self, numbers: list[int]) -> None:
        self.bring(numbers)
        known = [n for n in sorted(set(numbers)) if n in self.model]
        self.table.remove(self.table.find(self.keys(known)))
        for number in known:
            del self.model[number]

    def savepoint(self, numbers: list[int]) -> None:
        self.marks.append((self.table.savepoint(), dict(self.model)))

    def undo(self, numbers: list[int]) -> None:
        if self.marks:
            place = sum(numbers) % len(self.marks)
            mark, model = self.marks[place]
            self.table.undo(mark)
            self.model = dict(model)
            del self.marks[place + 1 :]

    def step(self, numbers: list[int]) -> None:
        self.table.step()
        self.before, self.marks = dict(self.model), []

    def take_delta(self) -> None:
        delta = self.table.delta()
        delta.validate(full=True)
        self.pending.append(delta)

    def cut(self, numbers: list[int]) -> None:
        self.take_delta()
        self.table.cut()
        self.before, self.marks = dict(self.model), []
        self.cuts.append(dict(self.model))
        rows = whole(newest(reversed(self.stored + self.pending), self.table.schema, self.codec))
        keys = [key for (key,) in self.codec.as_tuples(self.codec.from_storage(rows["__key"]))]
        lists = [[row["n"] for row in bag] for bag in rows["rows.__list"].to_pylist()]
        assert dict(zip(keys, lists, strict=True)) == self.model

    def settle(self, numbers: list[int]) -> None:
        durable = sum(numbers) % len(self.cuts)
        self.table.settle(durable)
        self.stored += self.pending[:durable]
        del self.cuts[:durable], self.pending[:durable]

    def seal(self, numbers: list[int]) -> None:
        self.take_delta()
        self.stored += self.pending
        self.table.seal()
        self._all_durable()

    def _all_durable(self) -> None:
        self.before, self.cuts = dict(self.model), [dict(self.model)]
        self.marks, self.pending = [], []

    def rollback(self, numbers: list[int]) -> None:
        self.table.rollback()
        self.model = dict(self.cuts[0])
        self._all_durable()

    def tidy(self, numbers: list[int]) -> None:
        """Tidy as an operator does: within a round, after a round or after a seal."""
        if sum(numbers) % 3:
            [self.seal, self.step][sum(numbers) % 2](numbers)
        self.table.cuts += 1  # so that tidy scans
        self.bags.tidy()
        self.others.tidy()

    def evict(self, numbers: list[int]) -> None:
        [self.seal, self.step][len(numbers) % 2](numbers)
        self.away = True
        self.table.evict(self.table.nbytes * (sum(numbers) % 5) // 4)

    def restore(self, numbers: list[int]) -> None:
        """Continue with another table that has loaded the deltas or an export."""
        self.seal(numbers)
        rows = self.files()
        if sum(numbers) % 2 and not self.away:
            rows = self.table.export(self.table.entries_in(ALL))
            rows.validate(full=True)
        self.table, self.bags, self.others = made()
        self.table.load(rows)
        self.away = False

    def merge(self, numbers: list[int]) -> None:
        """Merge some of the files into one, as compaction does."""
        first = sum(numbers) % (len(self.stored) + 1)
        rows = newest(reversed(self.stored[first:]), self.table.schema, self.codec)
        self.stored[first:] = [rows]

    def drop(self, numbers: list[int]) -> None:
        """Drop slots and load them again."""
        self.seal(numbers)
        self.bring(list(self.model))
        self.table.seal()
        slots = np.unique(np.array(numbers[:2], np.int64) % SLOTS)
        moved = self.table.export(self.table.entries_in(slots))
        assert moved.num_rows == self.table.count_in(slots)
        self.table.drop(slots)
        assert len(self.table.entries_in(slots)) == self.table.count_in(slots) == 0
        self.table.load(moved)
        self.away = False

    def drop_for_good(self, numbers: list[int]) -> None:
        """Drop slots in the middle of an epoch."""
        self.step(numbers)
        slots = np.unique(np.array(numbers[:2], np.int64) % SLOTS)
        self.table.drop(slots)
        for tables in (self.stored, self.pending):
            gone = [np.isin(table["__slot"].to_numpy(), slots) for table in tables]
            tables[:] = [t.filter(pa.array(~g)) for t, g in zip(tables, gone, strict=True)]
        for model in (self.model, self.before, *self.cuts):
            for key in list(model):
                if slots_of(self.keys([key]).hashes, SLOTS)[0] in slots:
                    del model[key]

    # -- checks

    def check(self) -> None:
        self.bring(list(self.model))
        entries = self.table.entries_in(ALL)
        keys = [key for (key,) in self.codec.as_tuples(self.table.keys(entries))]
        assert sorted(keys) == sorted(self.model)
        owner, rows = self.bags.take(entries)
        assert self.bags.counts(entries).tolist() == [len(self.model[key]) for key in keys]
        assert (np.diff(owner) >= 0).all()
        assert rows.equals(rows_of([n for key in keys for n in self.model[key]]))
        assert owner.tolist() == [at for at, key in enumerate(keys) for _ in self.model[key]]
        other_owner, ids = self.others.ids(entries)
        assert other_owner.tolist() == owner.tolist()
        assert self.others.values("n", ids).equals(rows.column("n"))
        self.check_before()

    def check_before(self) -> None:
        entries = np.unique(np.concatenate([self.table.touched(), self.table.entries_in(ALL)]))
        keys = [key for (key,) in self.codec.as_tuples(self.table.keys(entries))]
        owner, ids = self.bags.before(entries)
        was: Model = {key: [] for key in keys}
        for at, n in zip(owner, self.bags.values("n", ids).to_pylist(), strict=True):
            was[keys[at]].append(n)
        assert was == {key: self.before.get(key, []) for key in keys}


Operation = Callable[[Twin, list[int]], None]
OPERATIONS: list[Operation] = [
    Twin.append, Twin.append, Twin.append, Twin.append, Twin.replace, Twin.forget_first,
    Twin.forget_some, Twin.touch, Twin.remove, Twin.savepoint, Twin.undo, Twin.seal, Twin.seal,
    Twin.rollback, Twin.tidy, Twin.evict, Twin.restore, Twin.merge, Twin.drop,
    Twin.step, Twin.step, Twin.cut, Twin.cut, Twin.settle, Twin.drop_for_good, Twin.tidy,
]  # fmt: skip
numbers = st.lists(st.integers(0, 12), max_size=10)


@settings(max_examples=250, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), numbers), max_size=30), st.booleans())
def test_any_sequence_of_operations_leaves_bags_and_lists_equal(
    operations: list[tuple[Operation, list[int]]], tidies: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 4 if tidies else 1024)
        patch.setattr(module, "SMALL", 2)
        twin = Twin()
        for operation, arguments in operations:
            operation(twin, arguments)
            twin.check()


def large(rows: int = 1000) -> Twin:
    """A sealed table with one bag of `rows` rows, and a small one."""
    twin = Twin()
    entries = twin.table.upsert(twin.keys([1] * rows + [2]))
    twin.bags.append(entries, rows_of(twin.fresh(rows + 1)))
    twin.seal([])
    return twin


def summary(delta: pa.Table) -> list[tuple[int, bool, int | None]]:
    """For each entry of a delta: its number of rows, whether it is a patch, and how many rows are gone."""
    rows = delta.column("rows.__list")
    patch, gone = delta.column("rows.__list~patch"), delta.column("rows.__list~gone")
    counts = [len(cell) for cell in rows.to_pylist()]
    return list(zip(counts, patch.to_pylist(), gone.to_pylist(), strict=True))


def test_a_delta_has_only_the_appended_rows() -> None:
    twin = large()
    for added in (1, 3):
        entries = twin.table.upsert(twin.keys([1] * added + [2]))
        twin.bags.append(entries, rows_of(twin.fresh(added + 1)))
    assert summary(twin.table.delta()) == [(4, True, 0), (3, False, None)]


def test_a_delta_has_no_rows_of_an_unchanged_bag() -> None:
    twin = large()
    twin.table.touch(np.array([0]))
    assert summary(twin.table.delta()) == [(0, True, 0)]


def test_a_delta_has_the_number_of_rows_removed_at_the_front() -> None:
    twin = large()
    twin.table.touch(np.array([0]))
    owner, ids = twin.bags.ids(np.array([0]))
    twin.bags.keep(np.array([0]), owner[10:], ids[10:])
    twin.bags.append(np.array([0, 0]), rows_of(twin.fresh(2)))
    assert summary(twin.table.delta()) == [(2, True, 10)]


@pytest.mark.parametrize("kept", [slice(0, 999), slice(0, None, 2), slice(990, None)])
def test_a_bag_with_other_changes_is_written_as_a_whole(kept: slice) -> None:
    twin = large()
    twin.table.touch(np.array([0]))
    owner, ids = twin.bags.ids(np.array([0]))
    twin.bags.keep(np.array([0]), owner[kept], ids[kept])
    assert summary(twin.table.delta()) == [(len(owner[kept]), False, None)]


def test_a_bag_that_lost_a_row_in_the_middle_is_written_as_a_whole() -> None:
    twin = large()
    twin.table.touch(np.array([0]))
    _, ids = twin.bags.ids(np.array([0]))
    ids = np.concatenate([np.delete(ids, 500), twin.bags.put(rows_of(twin.fresh(5)))])
    twin.bags.keep(np.array([0]), np.zeros(len(ids), np.int64), ids)
    assert summary(twin.table.delta()) == [(1004, False, None)]


def test_unused_rows_are_removed_when_there_are_many() -> None:
    twin = large(20_000)
    twin.bags.tidy()
    before = twin.table.nbytes
    _, ids = twin.bags.ids(np.array([0]))
    twin.table.touch(np.array([0]))
    twin.bags.keep(np.array([0]), np.zeros(50, np.int64), ids[:50])
    twin.bags.tidy()
    assert twin.table.nbytes >= before, "the change can still be undone"
    twin.seal([])
    twin.bags.tidy()
    assert twin.table.nbytes < before / 10
    assert twin.bags.take(np.array([0]))[1].equals(rows_of(list(range(50))))


def test_evicted_rows_are_removed_at_once() -> None:
    twin = Twin()
    twin.append(list(range(5000)))
    twin.seal([])
    twin.table.evict(twin.table.nbytes // 2)
    assert 1500 < len(twin.table) < 3500
    assert twin.bags._arena.size < 3500


def test_unused_rows_are_removed_before_entries_are_evicted() -> None:
    twin = Twin()
    twin.append(list(range(5000)))
    twin.seal([])
    needed = twin.table.nbytes
    for _ in range(5):
        twin.replace(list(range(5000)))
    twin.seal([])
    assert twin.table.nbytes > 3 * needed
    twin.table.evict(3 * needed)
    assert len(twin.table) == 5000
    twin.check()


def test_the_bytes_of_rows_count_as_bytes_of_the_table() -> None:
    twin = Twin()
    before = twin.table.nbytes
    entries = twin.table.upsert(twin.keys([1] * 100_000))
    twin.others.append(entries, pa.record_batch({"n": np.arange(100_000)}))
    assert twin.table.nbytes - before > 790_000


def test_an_empty_input_stores_nothing() -> None:
    twin = Twin()
    none = np.empty(0, np.int64)
    twin.bags.append(none, rows_of([]))
    twin.bags.replace(none, none, rows_of([]))
    owner, rows = twin.bags.take(none)
    assert (len(owner), rows.num_rows, rows.schema) == (0, 0, ROW)
    assert twin.table.delta().num_rows == 0


def test_invalid_bags_are_rejected() -> None:
    with pytest.raises(FlowError, match=r"without dots"):
        Bags("a.b", ROW)
    with pytest.raises(FlowError, match=r"no columns"):
        Bags("a", pa.schema([]))
    with pytest.raises(ProtocolError, match=r"bind"):
        Bags("a", ROW).counts(np.array([0]))


def test_state_of_another_row_type_is_rejected() -> None:
    one: Any = Bags("a", ROW).column
    other: Any = Bags("a", pa.schema([("n", pa.int64())])).column
    assert one != other
    assert one == Bags("a", ROW).column
