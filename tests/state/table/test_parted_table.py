"""A table in parts compared with a single table: the same calls have the same results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointError, ProtocolError
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.table.columns import Column
from penstock.state.table.parted import PartedTable
from penstock.state.table.table import ColumnTable

SLOTS = 11
COLUMNS = [Column("n", pa.int64()), Column("x", pa.float64())]
CODECS = [
    KeyCodec(pa.schema([("k", pa.int64())])),
    KeyCodec(pa.schema([("k", pa.string()), ("j", pa.int32())])),
]
EVERY = np.arange(SLOTS)


def keys_of(codec: KeyCodec, numbers: list[int]) -> Keys:
    if codec.layout == "int":
        return codec.encode(pa.record_batch({"k": pa.array(numbers, pa.int64())}))
    texts, small = pa.array(list(map(str, numbers)), pa.string()), pa.array(numbers, pa.int32())
    return codec.encode(pa.record_batch({"k": texts, "j": small}))


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


class Twins:
    """One table, and the same in parts. Every change is made to both."""

    def __init__(self, codec: KeyCodec, parts: int) -> None:
        self.codec = codec
        self.plain = ColumnTable(codec, COLUMNS, SLOTS)
        self.parts = [ColumnTable(codec, COLUMNS, SLOTS) for _ in range(parts)]
        self.parted = PartedTable(self.parts)

    def add(self, numbers: list[int]) -> None:
        self._add(self.plain, numbers)
        slots = slots_of(keys_of(self.codec, numbers).hashes, SLOTS)
        for number, part in enumerate(self.parts):
            mine = slots % len(self.parts) == number
            self._add(part, [n for n, is_mine in zip(numbers, mine, strict=True) if is_mine])

    def remove(self, numbers: list[int]) -> None:
        for table in (self.plain, *self.parts):
            entries = table.find(keys_of(self.codec, sorted(set(numbers))))
            table.remove(entries[entries >= 0])

    def _add(self, table: ColumnTable, numbers: list[int]) -> None:
        entries = table.upsert(keys_of(self.codec, numbers))
        np.add.at(table.column("n"), entries, numbers)
        np.add.at(table.column("x"), entries, 0.5)

    def check(self) -> None:
        plain, parted, keys = self.plain, self.parted, keys_of(self.codec, list(range(32)))
        assert len(plain) == len(parted)
        assert plain.sealed == parted.sealed
        assert plain.schema.equals(parted.schema)
        assert plain.between_rounds == parted.between_rounds
        assert bag(plain.delta()) == bag(parted.delta())
        assert bag(plain.delta(EVERY[::2])) == bag(parted.delta(EVERY[::2]))
        assert bag(plain.export(plain.touched())) == bag(parted.export(parted.touched()))
        assert plain.least("n", 3) == parted.least("n", 3)
        assert plain.least("n", 3, plain.touched()) == parted.least("n", 3, parted.touched())
        mine, theirs = plain.find(keys), parted.find(keys)
        assert ((mine < 0) == (theirs < 0)).all()
        # in any order of entries
        order = np.argsort(-keys.hashes.astype(np.int64))
        mine, theirs = mine[order][mine[order] >= 0], theirs[order][theirs[order] >= 0]
        assert plain.export(mine).to_pylist() == parted.export(theirs).to_pylist()
        assert plain.values("n", mine).tolist() == parted.values("n", theirs).tolist()
        for slots in (EVERY[::2], EVERY[3:4], EVERY[:0]):
            whole = plain.export(plain.entries_in(slots))
            assert bag(whole) == bag(parted.export(parted.entries_in(slots)))


STEPS = ("add", "remove", "seal", "rollback", "step", "cut")
numbers = st.lists(st.integers(0, 31), max_size=12)
steps = st.lists(
    st.tuples(st.sampled_from([*STEPS, "savepoint", "undo", "settle"]), numbers),
    max_size=10,
)


@given(st.sampled_from(CODECS), st.sampled_from([1, 2, 5, 16]), steps)
@settings(max_examples=30, derandomize=True)
def test_same_as_one_table(codec: KeyCodec, parts: int, steps: list[tuple[str, list[int]]]) -> None:
    twins = Twins(codec, parts)
    marks: list[tuple[int, int]] = []
    cuts = 0
    for what, some in steps:
        if what in ("add", "remove"):
            getattr(twins, what)(some)
        elif what == "savepoint":
            marks.append((twins.plain.savepoint(), twins.parted.savepoint()))
        elif what == "undo" and marks:
            at = sum(some) % len(marks)
            twins.plain.undo(marks[at][0])
            twins.parted.undo(marks[at][1])
            del marks[at + 1 :]
        elif what == "settle" and cuts:
            cuts -= 1
            twins.plain.settle()
            twins.parted.settle()
        elif what in STEPS:
            cuts = {"step": cuts, "cut": cuts + 1}.get(what, 0)
            getattr(twins.plain, what)()
            getattr(twins.parted, what)()
            marks.clear()
        twins.check()


@given(st.sampled_from(CODECS), st.sampled_from([2, 5]), numbers, numbers, numbers)
@settings(max_examples=20)
def test_rows_move_in_and_out(
    codec: KeyCodec, parts: int, held: list[int], asked: list[int], dropped: list[int]
) -> None:
    source, twins = Twins(codec, 1), Twins(codec, parts)
    source.add(held)
    whole = source.plain.export(source.plain.entries_in(EVERY))
    keys = keys_of(codec, asked)
    entries = source.plain.find(keys)
    rows = source.plain.export(entries[entries >= 0])
    rows = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert twins.plain.install(keys, rows) == twins.parted.install(keys, rows)
    every = keys_of(codec, list(range(32)))
    assert twins.plain.known(every).tolist() == twins.parted.known(every).tolist()
    twins.check()
    slots = np.unique(np.array(dropped, np.int64) % SLOTS)
    for table in (twins.plain, twins.parted):
        table.drop(slots)
    twins.check()
    for table in (twins.plain, twins.parted):
        table.load(whole)
        table.give_away(slots)
    twins.check()
    own = [part.own(part.entries_in(EVERY)) for part in (twins.plain, *twins.parts)]
    assert len(own[0]) == sum(map(len, own[1:]))


def test_parts_shrink_by_the_same_ratio() -> None:
    twins = Twins(CODECS[0], 4)
    twins.add(list(range(4000)))
    twins.parted.seal()
    before = twins.parted.renumberings
    gone = twins.parted.evict(twins.parted.nbytes // 2)
    assert 1500 < gone < 2500
    assert gone == 4000 - len(twins.parted)
    assert all(part_is_smaller for part_is_smaller in (len(p) < 800 for p in twins.parted.parts))
    assert twins.parted.renumberings > before
    assert twins.parted.evict(0) == 4000 - gone


def test_the_newest_entries_survive() -> None:
    twins = Twins(CODECS[0], 4)
    twins.add(list(range(3000)))
    twins.parted.seal()
    twins.add(list(range(100)))
    twins.parted.seal()
    twins.parted.evict(twins.parted.nbytes // 2)
    assert (twins.parted.find(keys_of(CODECS[0], list(range(100)))) >= 0).all()


def test_calls_that_are_not_allowed_within_an_epoch() -> None:
    twins = Twins(CODECS[0], 3)
    twins.add([1])
    for order in (lambda: twins.parted.drop(EVERY), lambda: twins.parted.evict(0)):
        with pytest.raises(ProtocolError, match="in the middle of a round"):
            order()
    with pytest.raises(ProtocolError, match="savepoint 0 is gone"):
        twins.parted.undo(0)
    mark = twins.parted.savepoint()
    twins.parted.rollback()
    with pytest.raises(ProtocolError, match="is gone"):
        twins.parted.undo(mark)


def test_rows_of_another_step_are_rejected() -> None:
    twins = Twins(CODECS[0], 3)
    other = Twins(CODECS[1], 1).plain
    for take_in in (
        lambda: twins.parted.load(other.delta()),
        lambda: twins.parted.install(keys_of(CODECS[0], []), other.delta()),
    ):
        with pytest.raises(CheckpointError, match="the stored state has the columns"):
            take_in()
