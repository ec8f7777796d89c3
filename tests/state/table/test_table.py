"""The table compared with a plain dict, under any sequence of changes and undos."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointError, ProtocolError
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.table import table as module
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable

SLOTS = 8
ALL = np.arange(SLOTS)
COLUMNS = [
    Column("total", pa.int64()),
    Column("ratio", pa.float32()),
    Column("flag", pa.bool_()),
    Column("at", pa.timestamp("us")),
    Column("name", pa.string()),
    Column("registers", pa.uint8(), 4),
]
LAYOUTS = {
    "int": pa.schema([("k", pa.int64())]),
    "text": pa.schema([("k", pa.string())]),
    "pair": pa.schema([("k", pa.string()), ("j", pa.int32())]),
}
Value = tuple[Any, ...]
NEW: Value = (0, 0.0, False, 0, None, (0, 0, 0, 0))


@dataclass
class Twin:
    """A table, and the dict that it must equal."""

    layout: str
    model: dict[Value, Value] = field(default_factory=dict)
    dirty: dict[Value, None] = field(default_factory=dict)
    """Touched in this round."""
    changed: dict[Value, None] = field(default_factory=dict)
    """Touched in this epoch, in the rounds before."""
    before: dict[Value, Value] = field(default_factory=dict)
    """As of the last step."""
    cuts: list[dict[Value, Value]] = field(default_factory=lambda: [{}])
    """As of the newest durable cut, and of all cuts since."""
    marks: list[tuple[int, dict[Value, Value], dict[Value, None]]] = field(default_factory=list)
    evicted: pa.Table | None = None

    def __post_init__(self) -> None:
        self.codec = KeyCodec(LAYOUTS[self.layout])
        self.table = ColumnTable(self.codec, COLUMNS, SLOTS)

    def keys(self, numbers: list[int]) -> tuple[Keys, list[Value]]:
        columns: dict[str, list[Any]] = {"k": numbers}
        if self.layout != "int":
            columns["k"] = [("x" * (n % 19)) + str(n) for n in numbers]
        if self.layout == "pair":
            columns["j"] = [n % 3 for n in numbers]
        keys = self.codec.encode(pa.RecordBatch.from_pydict(columns, LAYOUTS[self.layout]))
        return keys, self.codec.as_tuples(keys)

    def bring(self, keys: Keys) -> None:
        """Install evicted entries that are needed now, as a host does before it applies rows."""
        if self.evicted is not None:
            missing = keys.take(np.flatnonzero(~self.table.known(keys)))
            durable = [key in self.cuts[0] for key in self.codec.as_tuples(missing)]
            stored = self.codec.to_storage(missing.take(np.flatnonzero(durable)))
            rows = self.evicted.filter(pc.is_in(self.evicted.column("__key"), value_set=stored))
            # the newest is last
            _, last = np.unique(rows.column("__hash").to_numpy()[::-1], return_index=True)
            self.table.install(missing, rows.take(pa.array(rows.num_rows - 1 - last)))

    def upsert(self, numbers: list[int]) -> None:
        keys, tuples = self.keys(numbers)
        self.bring(keys)
        entries = self.table.upsert(keys)
        column = {c.name: self.table.column(c.name) for c in COLUMNS}
        for number, key, entry in zip(numbers, tuples, entries, strict=True):
            total, ratio, _, at, name, registers = self.model.get(key, NEW)
            name = (name or "") + "z"
            new = [*registers]
            new[number % 4] = min(255, new[number % 4] + 1)
            self.model[key] = (total + number, ratio + 0.5, True, at - 1, name, tuple(new))
            self.dirty[key] = None
            column["total"][entry] += number
            column["ratio"][entry] += 0.5
            column["flag"][entry] = True
            column["at"][entry] -= 1
            column["name"][entry] = name
            column["registers"][entry, number % 4] = new[number % 4]

    def remove(self, numbers: list[int]) -> None:
        keys, tuples = self.keys(sorted(set(numbers)))
        self.bring(keys)
        entries = self.table.find(keys)
        assert [entry >= 0 for entry in entries] == [key in self.model for key in tuples]
        self.table.remove(entries[entries >= 0])
        for key in tuples:
            if self.model.pop(key, None) is not None:
                self.dirty[key] = None

    def savepoint(self, numbers: list[int]) -> None:
        self.marks.append((self.table.savepoint(), dict(self.model), dict(self.dirty)))

    def undo(self, numbers: list[int]) -> None:
        if self.marks:
            place = sum(numbers) % len(self.marks)
            mark, model, dirty = self.marks[place]
            self.table.undo(mark)
            self.model, self.dirty = dict(model), dict(dirty)
            del self.marks[place + 1 :]

    def step(self, numbers: list[int]) -> None:
        self.table.step()
        self._stepped()

    def _stepped(self) -> None:
        self.before, self.changed = dict(self.model), self.changed | self.dirty
        self.dirty, self.marks = {}, []

    def check_delta(self) -> None:
        delta = self.table.delta()
        delta.validate(full=True)
        assert delta.schema == self.table.schema
        assert_delta(self, delta)
        parts = [self.table.delta(ALL[:3]), self.table.delta(ALL[3:])]
        assert (np.isin(parts[0].column("__slot").to_numpy(), ALL[:3])).all()
        assert sorted(map(str, pa.concat_tables(parts).to_pylist())) == sorted(
            map(str, delta.to_pylist())
        )

    def cut(self, numbers: list[int]) -> None:
        self.check_delta()
        self.table.cut()
        self._stepped()
        self.cuts.append(dict(self.model))
        self.changed = {}

    def settle(self, numbers: list[int]) -> None:
        durable = sum(numbers) % len(self.cuts)
        self.table.settle(durable)
        del self.cuts[:durable]

    def seal(self, numbers: list[int]) -> None:
        self.check_delta()
        self.table.seal()
        self._stepped()
        self.cuts, self.changed = [dict(self.model)], {}

    def rollback(self, numbers: list[int]) -> None:
        self.table.rollback()
        assert self.table.sealed
        self.model, self.dirty = dict(self.cuts[0]), {}
        self._stepped()
        self.cuts, self.changed = [dict(self.model)], {}

    def evict(self, numbers: list[int]) -> None:
        """Export everything and evict a part of it, with or without epochs that can be rolled back."""
        [self.seal, self.step][len(numbers) % 2](numbers)
        self.bring_all()
        every = self.table.export(self.table.entries_in(np.arange(SLOTS)))
        before = len(self.table)
        gone = self.table.evict(self.table.nbytes * (sum(numbers) % 5) // 4)
        assert self.table.between_rounds
        assert len(self.table) == before - gone
        known = self.table.known(self.codec.from_storage(every.column("__key")))
        rows = every.filter(pa.array(~known))
        self.evicted = rows if self.evicted is None else pa.concat_tables([self.evicted, rows])

    def bring_all(self) -> None:
        if self.evicted is not None:
            self.bring(self.codec.from_storage(self.evicted.column("__key")))

    def restore(self, numbers: list[int]) -> None:
        """Export everything, and continue with a new table that has loaded it, some rows twice."""
        self.seal(numbers)
        self.bring_all()
        self.evicted = None
        whole = self.table.export(self.table.entries_in(np.arange(SLOTS)))
        stale = whole.slice(0, len(whole) // 2)
        place = whole.schema.get_field_index("__present")
        gone = pa.array([False] * len(stale), pa.bool_())
        dead = stale.set_column(place, whole.schema.field(place), gone)
        self.table = ColumnTable(self.codec, COLUMNS, SLOTS)
        self.table.load(pa.concat_tables([dead, whole]))
        assert self.table.sealed

    def drop(self, numbers: list[int]) -> None:
        [self.seal, self.step][len(numbers) % 2](numbers)
        self.bring_all()
        slots = np.unique(np.array(numbers[:2], np.int64) % SLOTS)
        self.table.drop(slots)
        entries = self.table.entries_in(slots)
        assert len(entries) == 0
        if self.evicted is not None:
            gone = np.isin(self.evicted.column("__slot").to_numpy(), slots)
            self.evicted = self.evicted.filter(pa.array(~gone))
        everywhere: list[dict[Value, Any]] = [self.model, self.before, self.changed, *self.cuts]
        for known in everywhere:
            for key in list(known):
                if slots_of(self.codec.from_values(key).hashes, SLOTS)[0] in slots:
                    del known[key]

    def check(self) -> None:
        self.bring_all()
        entries = self.table.entries_in(np.arange(SLOTS))
        values = [self.table.column(c.name)[entries].tolist() for c in COLUMNS]
        values[-1] = [tuple(registers) for registers in values[-1]]
        tuples = self.codec.as_tuples(self.table.keys(entries))
        assert dict(zip(tuples, zip(*values, strict=True), strict=True)) == self.model
        assert len(self.table) == len(self.model)
        assert self.codec.as_tuples(self.table.keys(self.table.touched())) == list(self.dirty)
        self.check_before()

    def check_before(self) -> None:
        """Check every entry as of the last step and cut, also those that are not present."""
        entries = np.unique(np.concatenate([self.table.touched(), self.table.entries_in(ALL)]))
        tuples = self.codec.as_tuples(self.table.keys(entries))
        for before, known in ((self.table.before, self.before), (self.table.at_cut, self.cuts[-1])):
            values = [before(c.name, entries).tolist() for c in COLUMNS]
            values[-1] = [tuple(registers) for registers in values[-1]]
            assert list(zip(*values, strict=True)) == [known.get(key, NEW) for key in tuples]
        was = self.table.was_present(entries).tolist()
        assert was == [key in self.before for key in tuples]


def assert_delta(twin: Twin, delta: pa.Table) -> None:
    rows = delta.to_pylist()
    keys = twin.codec.from_storage(delta.column("__key"))
    assert [row["__hash"] for row in rows] == keys.hashes.tolist()
    assert [row["__slot"] for row in rows] == slots_of(keys.hashes, SLOTS).tolist()
    written: dict[Value, Value | None] = {}
    for key, row in zip(twin.codec.as_tuples(keys), rows, strict=True):
        values = [row[column.name] for column in COLUMNS]
        assert row["__present"] == (key in twin.model)
        if row["__present"]:
            written[key] = (*values[:3], _micros(values[3]), values[4], tuple(values[5]))
        else:
            assert values == [None] * len(COLUMNS)
            written[key] = None
    assert list(written.items()) == [(k, twin.model.get(k)) for k in twin.changed | twin.dirty]


def _micros(value: Any) -> int:
    return int(np.datetime64(value, "us").astype(np.int64))


OPERATIONS: list[Callable[[Twin, list[int]], None]] = [
    Twin.upsert, Twin.upsert, Twin.upsert, Twin.remove, Twin.savepoint, Twin.undo,
    Twin.step, Twin.step, Twin.cut, Twin.settle,
    Twin.seal, Twin.rollback, Twin.restore, Twin.drop, Twin.evict,
]  # fmt: skip
numbers = st.lists(st.integers(0, 40), max_size=12)


@settings(max_examples=150, derandomize=True)
@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), numbers), max_size=35),
)
def test_any_sequence_of_operations_leaves_table_and_dict_equal(
    layout: str, operations: list[tuple[Callable[[Twin, list[int]], None], list[int]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 4)
        twin = Twin(layout)
        for operation, arguments in operations:
            operation(twin, arguments)
            twin.check()
        twin.rollback([])
        twin.check()


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_it_grows_and_shrinks(layout: str) -> None:
    """Grow far beyond the first allocation, and undo inserts across a growth of the index."""
    rng = np.random.default_rng(1)
    twin = Twin(layout)
    twin.upsert(list(range(900)))
    twin.savepoint([])
    twin.upsert(rng.integers(0, 9000, 12_000).tolist())
    twin.check()
    twin.undo([0])
    twin.check()
    twin.upsert(rng.integers(0, 9000, 12_000).tolist())
    twin.seal([])
    large = twin.table.nbytes
    twin.remove(list(range(8000)))
    twin.savepoint([])
    twin.upsert(list(range(50)))
    twin.check()
    twin.undo([0])
    twin.seal([])
    twin.check()
    assert twin.table.nbytes < large / 2
    twin.upsert(list(range(7990, 8010)))
    twin.check()
    twin.rollback([])
    twin.check()


def table_of(numbers: list[int]) -> ColumnTable:
    table = ColumnTable(KeyCodec(LAYOUTS["int"]), [Column("total", pa.int64())], SLOTS)
    entries = table.upsert(table.codec.encode(pa.record_batch({"k": numbers})))
    table.column("total")[entries] = numbers
    table.seal()
    return table


def test_a_change_without_an_insert_is_undone_after_touch() -> None:
    table = table_of([1, 2, 3])
    entries = np.array([0, 2])
    mark = table.savepoint()
    table.touch(entries)
    table.column("total")[entries] = 99
    assert table.touched().tolist() == [0, 2]
    table.undo(mark)
    assert table.column("total").tolist() == [1, 2, 3]
    assert table.sealed


def test_undoing_several_savepoints_at_once_goes_back_to_the_first() -> None:
    table = table_of([1, 2, 3])
    first = table.savepoint()
    for value in (10, 20, 30):
        table.touch(np.array([1, 2]))
        table.column("total")[1:] = value
        table.savepoint()
    table.undo(first)
    assert table.column("total").tolist() == [1, 2, 3]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_keys_whose_hashes_collide_stay_apart(layout: str) -> None:
    twin = Twin(layout)
    keys, tuples = twin.keys(list(range(100)))
    colliding = replace(keys, hashes=np.full(len(keys), 7, np.uint64))
    entries = twin.table.upsert(colliding)
    assert sorted(entries.tolist()) == list(range(100))
    assert twin.table.find(colliding).tolist() == entries.tolist()
    assert twin.codec.as_tuples(twin.table.keys(entries)) == tuples


def test_a_key_with_the_prefix_of_another_is_distinct() -> None:
    table = ColumnTable(KeyCodec(LAYOUTS["text"]), COLUMNS, SLOTS)
    keys = table.codec.encode(pa.record_batch({"k": ["abc", "ab", "a", "", "abcd", "c"]}))
    colliding = replace(keys, hashes=np.full(len(keys), 7, np.uint64))
    assert table.upsert(colliding).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_removed_key_comes_back_as_a_new_one() -> None:
    table = table_of([1, 2, 3])
    keys = table.codec.encode(pa.record_batch({"k": [2]}))
    table.remove(table.find(keys))
    assert table.find(keys).tolist() == [-1]
    table.seal()
    entry = table.upsert(keys)
    assert table.column("total")[entry].tolist() == [0]
    assert len(table) == 3


def test_changes_are_logged_after_stamps_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.table.table._SERIALS", 3)
    table = table_of([1, 2, 3])
    for _ in range(5):
        mark = table.savepoint()
        table.touch(np.array([1]))
        table.column("total")[1] = 0
        table.undo(mark)
        assert table.column("total").tolist() == [1, 2, 3]
        table.touch(np.array([0]))
        table.seal()


def test_calls_that_the_protocol_does_not_allow_are_rejected() -> None:
    table = table_of([1, 2, 3])
    first, second = table.savepoint(), table.savepoint()
    table.undo(first)
    with pytest.raises(ProtocolError, match="gone"):
        table.undo(second)
    table.seal()
    with pytest.raises(ProtocolError, match="gone"):
        table.undo(first)
    table.touch(np.array([0]))
    with pytest.raises(ProtocolError, match="middle of an epoch"):
        table.load(table.delta())
    with pytest.raises(ProtocolError, match="middle of a round"):
        table.drop(np.array([0]))
    table.step()
    table.drop(np.array([0]))
    with pytest.raises(ProtocolError, match="middle of an epoch"):
        table.load(table.delta())
    with pytest.raises(ProtocolError, match="cannot settle 1 cuts: only 0 are open"):
        table.settle()


def test_state_of_another_shape_is_rejected() -> None:
    table = table_of([1])
    other = ColumnTable(table.codec, [Column("total", pa.float64())], SLOTS)
    with pytest.raises(CheckpointError, match=r"total int64.*total double.*What to do"):
        other.load(table.export(np.array([0])))


def test_memory_per_key_stays_within_its_bound() -> None:
    codec = KeyCodec(LAYOUTS["int"])
    columns = [Column("total", pa.int64()), Column("seen", pa.bool_())]
    table = ColumnTable(codec, columns, SLOTS)
    for start in range(0, 300_000, 10_000):
        keys = np.arange(start, start + 10_000)
        table.upsert(codec.encode(pa.record_batch({"k": keys})))
        table.seal()
        if start >= 50_000:
            assert table.nbytes / len(table) <= 64


def test_exported_rows_do_not_change_with_the_table() -> None:
    table = table_of([1, 2, 3])
    exported = table.export(np.arange(3))
    before = copy.deepcopy(exported.to_pylist())
    table.touch(np.arange(3))
    table.column("total")[:] = 7
    assert exported.to_pylist() == before


def test_undoing_an_install_after_a_savepoint_keeps_the_start_of_the_round() -> None:
    table, other = table_of([1]), table_of([2])
    table.seal()
    mark = table.savepoint()
    key = other.keys(np.array([0]))
    table.install(key, other.export(np.array([0])))
    table.undo(mark)
    table.rollback()
    assert (len(table), table.known(key).tolist()) == (1, [False])


def test_settling_drops_dead_entries_but_not_those_a_rollback_restores() -> None:
    table = table_of(list(range(5000)))
    table.seal()
    known = table.keys(np.arange(5000))
    for first in (0, 2500):
        table.remove(np.arange(first, first + 2000))
        table.cut()
    assert table.renumberings == 0
    table.settle()
    assert (table.renumberings, table.known(known).sum(), len(table)) == (1, 3000, 1000)
    table.rollback()
    assert table.find(known).tolist() == [-1] * 2000 + list(range(3000))
    assert table.column("total").tolist() == list(range(2000, 5000))


def test_entries_of_slots_are_found_without_a_full_scan() -> None:
    table = table_of(list(range(3000)))
    slots = slots_of(table.keys(np.arange(3000)).hashes, SLOTS)
    for size in (3000, 2000, 3000):
        for some in (np.array([3]), np.array([5, 1, 5]), ALL):
            expected = np.flatnonzero(np.isin(slots[:size], some))
            assert table.entries_in(some).tolist() == expected.tolist()
        if size == 3000:
            table.seal()
            table.drop(ALL)
            table.upsert(table.codec.encode(pa.record_batch({"k": np.arange(2000)})))
        else:
            table.upsert(table.codec.encode(pa.record_batch({"k": np.arange(3000)})))


def test_entries_that_were_changed_elsewhere_are_put_as_changes_of_the_round() -> None:
    """They are in the delta, removals included, and are undone like other changes."""
    codec = KeyCodec(LAYOUTS["int"])
    here, there = (ColumnTable(codec, [Column("n", pa.int64())], SLOTS) for _ in range(2))
    keys = codec.encode(pa.record_batch({"k": [1, 2, 3]}))
    entries = here.upsert(keys)
    here.column("n")[entries] = [10, 20, 30]
    here.seal()
    there.install(keys, here.export(here.find(keys)))
    more = codec.encode(pa.record_batch({"k": [1, 2, 4]}))
    entries = there.upsert(more)
    there.column("n")[entries] = [11, 0, 40]
    there.remove(entries[1:2])
    mark = here.savepoint()
    here.put(there.export(there.touched()))
    assert here.find(more).tolist()[1] == -1
    assert here.values("n", here.find(keys.take(np.array([0, 2])))).tolist() == [11, 30]
    assert here.before("n", here.find(keys.take(np.array([0])))).tolist() == [10]
    delta = here.delta().select(["__present", "n"]).to_pylist()
    assert [tuple(row.values()) for row in delta] == [(True, 11), (False, None), (True, 40)]
    here.undo(mark)
    assert here.values("n", here.find(keys)).tolist() == [10, 20, 30]
    assert here.delta().num_rows == 0
