"""Lists of numbers in a table: the same as a dict of lists, through undo, rollback, and cleaned pools."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table import list_columns
from penstock.state.table.list_columns import ListColumn, ListPool
from penstock.state.table.table import ColumnTable

TYPE = pa.list_(pa.int64())
CODEC = KeyCodec(pa.schema([("user", pa.int64())]))
LISTS = st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=5)
CHANGES = st.dictionaries(st.integers(0, 7), LISTS, min_size=1, max_size=5)


def keys(users: list[int]) -> Keys:
    return CODEC.encode(pa.record_batch({"user": pa.array(users, pa.int64())}))


class Lists(RuleBasedStateMachine):
    """A table with one column of lists, and a dict. The pool is cleaned as often as possible."""

    def __init__(self) -> None:
        super().__init__()
        self.column = ListColumn("seen", TYPE, pool=ListPool(TYPE.value_type))
        self.table = ColumnTable(CODEC, [self.column], slots=4)
        self.now: dict[int, Any] = {}
        self.durable: dict[int, Any] = {}
        self.marks: list[tuple[int, dict[int, Any]]] = []

    @rule(changes=CHANGES)
    def change(self, changes: dict[int, Any]) -> None:
        entries = self.table.upsert(keys(list(changes)))
        values = self.column.from_arrow(pa.array(changes.values(), TYPE))
        self.table.column("seen")[entries] = values
        self.now |= changes

    @rule()
    def clean(self) -> None:
        self.column.pool.gather(self.table.held("seen", within_round=True))

    @rule(user=st.integers(0, 7))
    def remove(self, user: int) -> None:
        if user in self.now:
            self.table.remove(self.table.find(keys([user])))
            del self.now[user]

    @rule()
    def mark(self) -> None:
        self.marks.append((self.table.savepoint(), copy.deepcopy(self.now)))

    @precondition(lambda self: self.marks)
    @rule()
    def undo(self) -> None:
        mark, self.now = self.marks.pop()
        self.table.undo(mark)

    @rule()
    def seal(self) -> None:
        self.table.seal()
        self.marks, self.durable = [], copy.deepcopy(self.now)

    @rule()
    def step(self) -> None:
        self.table.step()
        self.marks = []

    @rule()
    def rollback(self) -> None:
        self.table.rollback()
        self.marks, self.now = [], copy.deepcopy(self.durable)

    @invariant()
    def same(self) -> None:
        entries = self.table.find(keys(list(self.now)))
        assert (entries >= 0).all()
        lists = self.column.to_arrow(self.table.column("seen")[entries])
        assert lists.to_pylist() == list(self.now.values())
        lists.validate(full=True)
        assert len(self.table) == len(self.now)


TestLists = Lists.TestCase


def test_the_pool_is_cleaned_before_it_is_three_times_as_large_as_its_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_columns, "_FEW", 8)
    pool = ListPool(pa.int64())
    cells = pool.put(pa.array([[1, 2, 3], [4]]))
    for n in range(100):
        cells[0] = pool.put(pa.array([[n, n + 1]]))[0]
        if pool.is_wasteful:
            pool.gather([cells])
        assert pool._arena.size <= 3 * 3 + 8 + 2
    assert pool.lists(cells, TYPE).to_pylist() == [[99, 100], [4]]


def test_a_slice_of_lists_is_stored() -> None:
    lists = pa.array([[1], [2, 3], None, [], [4, 5, 6]]).slice(1)
    pool = ListPool(pa.int64())
    cells = pool.put(lists)
    assert pool.lists(cells[np.array([3, 0, 2, 1])], TYPE).to_pylist() == [
        [4, 5, 6],
        [2, 3],
        [],
        None,
    ]
