"""Each kind of state, and timers, call by call, on a real table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import FlowError
from penstock.state.keys.codec import KeyCodec
from penstock.state.variables.handle import StateHandle
from penstock.state.variables.values import Row

CODEC = KeyCodec(pa.schema([("user", pa.string())]))


class Desk:
    """A handle with its table. The test plays the role of the operator."""

    def __init__(self, *declare: Callable[[StateHandle], Any]) -> None:
        self._declare = declare
        self.handle = StateHandle(CODEC, timers=True)
        self.states = [declared(self.handle) for declared in declare]
        self.table = self.handle.make_table(8)

    @contextmanager
    def call(self, user: str, now_ms: int = 0) -> Iterator[Any]:
        cells = self.handle.cells
        cells.now_ms = now_ms
        keys = CODEC.from_values([user])
        with cells.work(keys, self.table.find(keys)):
            cells.begin(0)
            yield self.states[0] if len(self.states) == 1 else self.states

    def export(self) -> pa.Table:
        return self.table.export(self.table.entries_in(np.arange(8)))

    def restored(self) -> Desk:
        other = Desk(*self._declare)
        other.table.load(self.export())
        return other

    def purge(self, now_ms: int) -> None:
        self.handle.cells.now_ms = now_ms
        for variable in self.handle.cells.variables:
            self.handle.cells.drop_bare(variable.purge())


def value_desk(schema: str = "n long, name string", ttl: int | str | None = None) -> Desk:
    return Desk(lambda handle: handle.get_value_state("v", schema, ttl))


def list_desk(ttl: int | None = None) -> Desk:
    return Desk(lambda handle: handle.get_list_state("l", "n long, name string", ttl))


def map_desk(ttl: int | None = None) -> Desk:
    return Desk(lambda handle: handle.get_map_state("m", "day int", "n long", ttl))


def timer_desk() -> Desk:
    return Desk(lambda handle: handle)


def test_value() -> None:
    desk = value_desk()
    with desk.call("ann") as v:
        assert not v.exists()
        assert v.get() is None
        v.update((1, "a"))
        assert v.exists()
        assert v.get() == (1, "a")
    with desk.call("ann") as v:
        assert v.get() == Row(n=1, name="a")
        assert v.get().name == "a"
        v.update({"name": None, "n": None})
        assert v.get() == (None, None)
    for again in (desk, desk.restored()):
        with again.call("bob") as v:
            assert v.get() is None
        with again.call("ann") as v:
            assert v.get() == (None, None)
            v.clear()
            v.clear()
            assert not v.exists()
        assert len(again.table) == 0


def test_every_type_of_field_comes_back_exactly() -> None:
    schema = (
        "a byte, b short, c int, d long, e float, f double, g boolean, h string, i binary, j date, "
        "k timestamp, l decimal(9,2), m array<int>, n struct<x:int,y:string>, o map<string,long>"
    )
    full = (
        1, -2, 3, -(2**63), 0.5, 1e300, True, "x", b"\0", date(1960, 1, 1),
        datetime(1969, 7, 20, 20, 17, 40, 5, UTC), Decimal("-1.25"), [1, None], (1, "y"), {"k": 7},
    )  # fmt: skip
    desk = value_desk(schema)
    with desk.call("full") as v:
        v.update(full)
    with desk.call("empty") as v:
        v.update((None,) * 15)
    for again in (desk, desk.restored(), desk.restored().restored()):
        with again.call("full") as v:
            assert v.get() == full
            assert v.get().n.y == "y"
            v.get().m.append(5)
            assert v.get() == full
        with again.call("empty") as v:
            assert v.get() == (None,) * 15
        assert again.export().equals(desk.export())
    other = desk.restored()
    with other.call("more") as v:
        v.update(full)
    assert other.restored().export().equals(other.export())
    keys = pa.record_batch({"user": ["more", "new", "full"]})
    with other.handle.cells.batch(keys, CODEC.encode(keys)):
        values = other.states[0].get_many(keys)
        assert values.to_pylist()[1] is None
        assert values[0].as_py() == values[2].as_py()
        other.states[0].update_many(keys, values.take(pa.array([2, 2, 0])))
    for again in (other, other.restored()):
        for user in ("more", "new", "full"):
            with again.call(user) as v:
                assert v.get() == full
        assert len(again.export()) == 4


def test_at_most_sixty_three_fields() -> None:
    wide = ", ".join(f"f{i} long" for i in range(63))
    desk = value_desk(wide)
    row = tuple(None if i % 3 else i for i in range(63))
    with desk.call("ann") as v:
        v.update(row)
    with desk.restored().call("ann") as v:
        assert v.get() == row
    with pytest.raises(FlowError, match="64 fields"):
        value_desk(wide + ", f63 long")


def test_list() -> None:
    desk = list_desk()
    with desk.call("ann") as items:
        assert not items.exists()
        assert list(items.get()) == []
        items.append_value((1, "a"))
        items.append_list([(2, "b"), {"n": 3, "name": None}])
        seen = items.get()
        items.append_value((4, "d"))
        assert [row.n for row in seen] == [1, 2, 3]
    for again in (desk, desk.restored()):
        with again.call("ann") as items:
            assert [row.n for row in items.get()] == [1, 2, 3, 4]
            for row in items.get():
                items.append_value(row)
            assert len(list(items.get())) == 8
            items.put([(9, "z")])
            items.append_value((10, "y"))
        with again.call("ann") as items:
            assert list(items.get()) == [(9, "z"), (10, "y")]
            items.append_list([])
            items.put([])
            assert not items.exists()
        assert len(again.table) == 0


def test_map() -> None:
    desk = map_desk()
    with desk.call("ann") as m:
        assert not m.exists()
        assert m.get_value((1,)) is None
        m.update_value((1,), (10,))
        m.update_value((2,), (20,))
        assert m.exists()
    for again in (desk, desk.restored()):
        with again.call("ann") as m:
            assert m.get_value((1,)) == Row(n=10)
            assert m.contains_key({"day": 2})
            assert not m.contains_key((3,))
            pairs = m.iterator()
            m.update_value((3,), (30,))
            m.remove_key((1,))
            m.remove_key((1,))
            assert dict(pairs) == {(1,): (10,), (2,): (20,)}
            assert list(m.keys()) == [(2,), (3,)]
            assert [row.n for row in m.values()] == [20, 30]
        with again.call("ann") as m:
            assert dict(m.iterator()) == {(2,): (20,), (3,): (30,)}
            m.clear()
            m.update_value((4,), (40,))
            assert list(m.keys()) == [(4,)]
            m.remove_key((4,))
            assert not m.exists()
        assert len(again.table) == 0
    with pytest.raises(FlowError, match="keys"):
        Desk(lambda handle: handle.get_map_state("m", "tags array<int>", "n long"))


def test_a_failing_call_changes_nothing_and_undo_reverts_one_call() -> None:
    desk = Desk(
        lambda handle: handle.get_value_state("v", "n long"),
        lambda handle: handle.get_list_state("l", "n long"),
        lambda handle: handle.get_map_state("m", "k long", "n long"),
        lambda handle: handle,
    )

    def change(value: Any, items: Any, pairs: Any, handle: StateHandle, *, by: int) -> None:
        value.update((by,))
        items.append_value((by,))
        pairs.update_value((by,), (by,))
        handle.register_timer(by)

    with desk.call("ann") as states:
        change(*states, by=1)
    before = desk.export()
    with suppress(ZeroDivisionError), desk.call("ann") as states:
        change(*states, by=2)
        raise ZeroDivisionError
    assert desk.export().equals(before)
    assert len(desk.table.touched()) == 1
    with desk.call("ann") as states:
        change(*states, by=2)
        mark = desk.handle.cells.begin(0)
        change(*states, by=3)
        states[2].clear()
        desk.handle.cells.undo(mark)
        assert [row.n for row in states[1].get()] == [1, 2]
    with desk.call("ann") as (value, items, pairs, handle):
        assert value.get() == (2,)
        assert [row.n for row in items.get()] == [1, 2]
        assert [row.n for row in pairs.values()] == [1, 2]
        assert list(handle.list_timers()) == [1, 2]


def test_cells_in_the_table_are_replaced_and_never_changed() -> None:
    desk = Desk(
        lambda handle: handle.get_list_state("l", "n long"),
        lambda handle: handle.get_map_state("m", "k long", "n long"),
    )
    with desk.call("ann") as (items, pairs):
        items.append_value((1,))
        pairs.update_value((1,), (1,))
    before = desk.export()
    mark = desk.table.savepoint()
    with desk.call("ann") as (items, pairs):
        items.append_value((2,))
        pairs.update_value((2,), (2,))
    assert not desk.export().equals(before)
    desk.table.undo(mark)
    assert desk.export().equals(before)


def test_a_value_expires_its_ttl_after_the_last_update() -> None:
    desk = value_desk(ttl="1s")
    with desk.call("ann", now_ms=0) as v:
        v.update((1, "a"))
    with desk.call("ann", now_ms=999) as v:
        assert v.exists()
        v.get()
    with desk.call("ann", now_ms=1000) as v:
        assert not v.exists()
        assert v.get() is None
    with desk.call("ann", now_ms=500) as v:
        v.update((2, "b"))
    desk = desk.restored()
    desk.purge(now_ms=1499)
    with desk.call("ann", now_ms=1499) as v:
        assert v.get() == (2, "b")
    desk.purge(now_ms=1500)
    assert len(desk.table) == 0


def test_elements_of_a_list_expire_one_by_one() -> None:
    desk = list_desk(ttl=100)
    with desk.call("ann", now_ms=0) as items:
        items.append_value((1, "a"))
    with desk.call("ann", now_ms=50) as items:
        items.append_list([(2, "b"), (3, "c")])
    desk = desk.restored()
    with desk.call("ann", now_ms=99) as items:
        assert [row.n for row in items.get()] == [1, 2, 3]
    with desk.call("ann", now_ms=100) as items:
        assert [row.n for row in items.get()] == [2, 3]
        items.append_value((4, "d"))
    desk.purge(now_ms=150)
    with desk.call("ann", now_ms=150) as items:
        assert [row.n for row in items.get()] == [4]
    assert len(desk.export().column("l.__list")[0]) == 1
    desk.purge(now_ms=200)
    assert len(desk.table) == 0


def test_pairs_of_a_map_expire_one_by_one() -> None:
    desk = map_desk(ttl=100)
    with desk.call("ann", now_ms=0) as m:
        m.update_value((1,), (1,))
        m.update_value((2,), (2,))
    with desk.call("ann", now_ms=60) as m:
        m.update_value((1,), (11,))
    desk = desk.restored()
    desk.purge(now_ms=100)
    with desk.call("ann", now_ms=100) as m:
        assert not m.contains_key((2,))
        assert m.get_value((2,)) is None
        assert dict(m.iterator()) == {(1,): (11,)}
    with desk.call("ann", now_ms=160) as m:
        assert not m.exists()
        m.update_value((3,), (3,))
        assert list(m.keys()) == [(3,)]
    desk.purge(now_ms=260)
    assert len(desk.table) == 0


def test_timers_of_both_kinds() -> None:
    desk = timer_desk()
    with desk.call("ann") as handle:
        for expiry in (30, 10, 20, 10):
            handle.register_timer(expiry)
        handle.register_timer(-5, time="event")
        handle.register_timer(10, time="event")
        assert list(handle.list_timers()) == [10, 20, 30]
        assert list(handle.list_timers("event")) == [-5, 10]
        handle.delete_timer(10)
        handle.delete_timer(11)
    queue = desk.handle.timers
    assert queue is not None
    for again in (desk, desk.restored()):
        queue = again.handle.timers
        assert queue is not None
        assert len(queue.due({"processing": 19, "event": None})) == 0
        assert len(queue.due({"processing": 20, "event": None})) == 1
        assert len(queue.due({"processing": 0, "event": -6})) == 0
        assert len(queue.due({"processing": 0, "event": -5})) == 1
        with again.call("ann") as handle:
            assert list(handle.list_timers()) == [20, 30]
            for kind in ("processing", "event"):
                for expiry in handle.list_timers(kind):
                    handle.delete_timer(expiry, kind)
        assert len(again.table) == 0
        with again.call("ann") as handle:
            with pytest.raises(FlowError, match="kind of time"):
                handle.register_timer(1, time="Event")
            with pytest.raises(OverflowError):
                handle.register_timer(1 << 62)
            with pytest.raises(TypeError):
                handle.register_timer(1.5)


def test_keys_without_state_leave_no_entry() -> None:
    desk = value_desk()
    with desk.call("ann") as v:
        assert v.get() is None
    with desk.call("bob") as v:
        v.update((1, "a"))
        v.clear()
    assert len(desk.table.touched()) == 0


def test_declarations() -> None:
    handle = StateHandle(CODEC, timers=False)
    first = handle.get_value_state("a", "n long")
    assert handle.get_value_state("a", pa.schema([("n", pa.int64())])) is first
    handle.get_list_state("gone", "n long")
    handle.delete_if_exists("gone")
    handle.delete_if_exists("never was")
    for wrong in (
        lambda: handle.get_value_state("a", "n int"),
        lambda: handle.get_list_state("a", "n long"),
        lambda: handle.get_value_state("a", "n long", ttl=5),
        lambda: handle.get_value_state("", "n long"),
        lambda: handle.get_value_state("x.y", "n long"),
        lambda: handle.get_value_state("__x", "n long"),
        lambda: handle.get_value_state("x", "__n long"),
        lambda: handle.get_value_state("x", "struct<>"),
        lambda: handle.get_value_state("x", "n long", ttl=0),
        lambda: handle.get_value_state("x", "n long", ttl="soon"),
        lambda: handle.get_value_state("x", "n long", ttl=1.5),  # type: ignore[arg-type]
        lambda: first.get(),
        lambda: handle.register_timer(5),
        lambda: handle.state("unknown"),
    ):
        with pytest.raises(FlowError):
            wrong()
    table = handle.make_table(4)
    assert [column.name for column in table.columns] == ["a.__bits", "a.n"]
    with pytest.raises(FlowError, match="init"):
        handle.get_value_state("late", "n long")
    with pytest.raises(FlowError, match="outside of a call"):
        first.get()


@pytest.mark.parametrize("kind", ["list", "map"])
def test_a_collection_that_was_changed_elsewhere_is_whole_in_the_next_delta(kind: str) -> None:
    """A patch would refer to elements that the store does not have."""
    here, there = (list_desk() if kind == "list" else map_desk() for _ in range(2))
    with here.call("ann") as state:
        for n in range(40):
            _add(state, kind, n)
    here.table.seal()
    there.table.load(here.export())
    with there.call("ann") as state:
        _add(state, kind, 40)
    here.table.put(there.export())
    (row,) = here.table.delta().to_pylist()
    (items,) = (v for name, v in row.items() if name.endswith(f".__{kind}"))
    assert len(items) == 41
    assert not any(v for name, v in row.items() if name.endswith("~patch"))


def _add(state: Any, kind: str, n: int) -> None:
    if kind == "list":
        state.append_value((n, f"name-{n}"))
    else:
        state.update_value((n,), (n,))
