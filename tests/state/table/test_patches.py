"""Patches of maps and lists: only changes are written, and folding restores what was in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import FlowError, ProtocolError
from penstock.state.table.patches import completed, fold, has_patches, patch_fields, unresolved
from tests.state.variables.test_handle import Desk, list_desk, map_desk

KEY = pa.struct([("a", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
ROW = pa.struct([("n", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("__present", pa.bool_()),
        pa.field("v.n", pa.int64()),
        *patch_fields("m.__map", pa.map_(KEY, ROW)),
        *patch_fields("l.__list", pa.list_(ROW)),
    ]
)
PLAIN = ["__present", "v.n", "m.__map", "l.__list"]

Part = tuple[Any, bool, Any]
"""(elements, whether they are a patch, removed keys or number of removed elements)."""


def some_part(rng: random.Random, elements: Any, gone: Any) -> Part:
    if rng.random() < 0.6:
        return elements, True, gone
    return (None if rng.random() < 0.2 else elements), False, None


def some_row(rng: random.Random) -> tuple[int, Part, Part] | None:
    def key() -> tuple[int, str | None, float]:
        return rng.randrange(3), rng.choice(["x", None]), rng.choice([0.0, -0.0, 1.5])

    if rng.random() < 0.2:
        return None
    pairs = {key(): rng.randrange(100) for _ in range(rng.randrange(5))}
    gone = list(dict.fromkeys(key() for _ in range(rng.randrange(4))))
    items = [rng.randrange(100) for _ in range(rng.randrange(5))]
    return rng.randrange(9), some_part(rng, pairs, gone), some_part(rng, items, rng.randrange(3))


def as_table(rows: Iterable[tuple[int, Part, Part] | None]) -> pa.Table:
    def struct(key: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip("asf", key, strict=True))

    dicts: list[dict[str, Any]] = []
    for row in rows:
        if row is None:
            dicts.append({"__present": False})
            continue
        n, (pairs, map_patch, keys), (items, list_patch, count) = row
        dicts.append(
            {
                "__present": True,
                "v.n": n,
                "m.__map": pairs and [(struct(k), {"n": v}) for k, v in pairs.items()],
                "m.__map~patch": map_patch,
                "m.__map~gone": keys and [struct(k) for k in keys],
                "l.__list": items and [{"n": v} for v in items],
                "l.__list~patch": list_patch,
                "l.__list~gone": count,
            }
        )
        for name, value in (("m.__map", pairs), ("m.__map~gone", keys), ("l.__list", items)):
            dicts[-1][name] = [] if value is not None and not value else dicts[-1][name]
    return pa.Table.from_pylist(dicts, SCHEMA)


def folded_row(older: Any, newer: Any) -> Any:
    if newer is None:
        return None
    old_map, old_list = older[1:] if older else (({}, False, None), ([], False, None))
    n, new_map, new_list = newer
    if new_map[1]:
        pairs = {k: v for k, v in (old_map[0] or {}).items() if k not in new_map[2]} | new_map[0]
        keys = list(dict.fromkeys(old_map[2] + new_map[2])) if old_map[1] else None
        new_map = (pairs, old_map[1], keys)
    if new_list[1]:
        items, gone = (old_list[0] or []) + new_list[0], new_list[2]
        whole = (items[gone:], False, None)
        new_list = (items, True, old_list[2] + gone) if old_list[1] else whole
    return n, new_map, new_list


@pytest.mark.parametrize("seed", range(150))
def test_fold_of_many_rows_equals_the_definition_for_one(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(8)
    older, newer = ([some_row(rng) for _ in range(count)] for _ in range(2))
    expected = [folded_row(o, n) for o, n in zip(older, newer, strict=True)]
    # as slices of larger tables, in several chunks
    cut = rng.randrange(count + 1)
    tables = []
    for rows in (older, newer):
        padded = as_table([some_row(rng), *rows]).slice(1)
        tables.append(pa.concat_tables([padded.slice(0, cut), padded.slice(cut)]))
    folded = fold(*tables)
    folded.validate(full=True)
    assert folded.schema.equals(SCHEMA)
    assert folded.to_pylist() == as_table(expected).to_pylist()
    patched = [bool(row and (row[1][1] or row[2][1])) for row in expected]
    assert unresolved(folded).tolist() == patched


def test_files_without_companions_are_completed() -> None:
    rows = [None, (3, ({(1, "x", 0.5): 7}, False, None), ([1, 2], False, None))]
    table = as_table(rows).append_column("other", pa.array([1, 2]))
    bare = table.select([*PLAIN, "other"])
    assert completed(bare, SCHEMA).equals(table)
    assert completed(table, SCHEMA) is table
    assert completed(bare.select(["v.n"]), SCHEMA).schema.names == ["v.n"]
    assert has_patches(SCHEMA)
    assert not has_patches(bare.schema)
    # a user's field can have any name, but not one like these
    assert not has_patches(pa.schema([("v.x", ROW), ("v.x~patch", pa.bool_())]))


def written(table: pa.Table) -> int:
    """Bytes of these rows in a file, as a record batch with its metadata."""
    return int(table.combine_chunks().to_batches()[0].serialize().size)


def test_of_ten_thousand_pairs_only_the_changed_one_is_written() -> None:
    desk = Desk(lambda handle: handle.get_map_state("m", "item string", "n long, name string"))
    with desk.call("ann") as m:
        for n in range(10_000):
            m.update_value((f"item {n}",), (n, "a name"))
    assert not unresolved(desk.table.delta()).any()
    desk.table.seal()
    with desk.call("ann") as m:
        m.update_value(("item 77",), (-1, "another"))
    delta, whole = desk.table.delta(), desk.export()
    pair = ({"item": "item 77"}, {"n": -1, "name": "another"})
    assert delta.column("m.__map").to_pylist() == [[pair]]
    assert written(delta) < written(whole) / 100
    desk.table.seal()
    with desk.call("ann") as m:
        m.remove_key(("item 7",))
    delta = desk.table.delta()
    assert delta.column("m.__map").to_pylist() == [[]]
    assert delta.column("m.__map~gone").to_pylist() == [[{"item": "item 7"}]]
    assert written(delta) < written(whole) / 100


def test_of_ten_thousand_elements_only_the_appended_one_is_written() -> None:
    desk = list_desk(ttl=100)
    with desk.call("ann") as items:
        items.append_value((-1, "old"))
    with desk.call("ann", now_ms=50) as items:
        items.append_list([(n, "x") for n in range(10_000)])
    desk.table.seal()
    with desk.call("ann", now_ms=60) as items:
        items.append_value((-2, "new"))
    desk.purge(now_ms=100)
    delta, whole = desk.table.delta(), desk.export()
    assert len(delta.column("l.__list")[0]) == 1
    assert delta.column("l.__list~gone").to_pylist() == [1]
    assert written(delta) < written(whole) / 100


def test_new_and_replaced_collections_are_written_as_a_whole() -> None:
    desk = Desk(
        lambda handle: handle.get_list_state("l", "n long"),
        lambda handle: handle.get_map_state("m", "k long", "n long"),
    )
    for _ in range(2):
        with desk.call("ann") as (items, m):
            items.put([(n,) for n in range(40)])
            m.clear()
            for k in range(40):
                m.update_value((k,), (k,))
        with desk.call("ann") as (items, m):
            items.append_value((40,))
            m.update_value((7,), (-7,))
        delta = desk.table.delta()
        assert not unresolved(delta).any()
        assert delta.equals(desk.export())
        desk.table.seal()


def test_an_unchanged_map_of_a_changed_entry_is_not_written() -> None:
    desk = Desk(
        lambda handle: handle.get_map_state("m", "k long", "n long"),
        lambda handle: handle.get_value_state("v", "n long"),
    )
    with desk.call("ann") as (m, v):
        for k in range(100):
            m.update_value((k,), (k,))
    desk.table.seal()
    with desk.call("ann") as (m, v):
        v.update((1,))
    delta = desk.table.delta()
    assert delta.column("m.__map~patch").to_pylist() == [True]
    assert delta.column("m.__map").to_pylist() == [[]]


def test_a_key_that_was_removed_and_added_again_is_the_last() -> None:
    desk = map_desk()
    with desk.call("ann") as m:
        for day in range(40):
            m.update_value((day,), (day,))
    desk.table.seal()
    older = desk.export()
    with desk.call("ann") as m:
        for day in (3, 5, 39, 50, 51):
            m.remove_key((day,))
            m.update_value((day,), (-day,))
        for day in (5, 50):
            m.remove_key((day,))
        m.update_value((38,), (-38,))
        assert [key.day for key, _ in m.iterator()][-4:] == [38, 3, 39, 51]
    delta = desk.table.delta()
    gone = {key["day"] for key in delta.column("m.__map~gone")[0].as_py()}
    assert {3, 5, 39} <= gone <= {3, 5, 38, 39}
    assert fold(older, delta).equals(desk.export())


def test_the_cost_of_a_call_depends_on_its_changes_not_on_the_map() -> None:
    desk = map_desk()
    with desk.call("ann") as m:
        for day in range(100):
            m.update_value((day,), (day,))
    (before,) = desk.table.column("m.__map")
    pairs = before.pairs
    with desk.call("ann") as m:
        m.update_value((7,), (-7,))
        m.update_value((7,), (-8,))
        m.update_value((100,), (100,))
    (after,) = desk.table.column("m.__map")
    assert after.pairs is pairs
    assert (pairs[(7,)], len(pairs)) == ((-8,), 101)
    # use the older cell again
    assert before.pairs is pairs
    assert (pairs[(7,)], len(pairs)) == ((7,), 100)
    with pytest.raises(ProtocolError, match="after it was dropped"):
        len(after)


def test_elements_that_expire_out_of_order_are_removed() -> None:
    desk = list_desk(ttl=100)
    for now_ms, n in ((50, 1), (0, 2), (60, 3)):
        with desk.call("ann", now_ms) as items:
            items.append_list([(n, "x")] * 20)
    desk.table.seal()
    desk.purge(now_ms=100)
    assert not unresolved(desk.table.delta()).any()
    with desk.call("ann", now_ms=100) as items:
        assert [row.n for row in items.get()] == [1] * 20 + [3] * 20
    desk.purge(now_ms=160)
    assert len(desk.table) == 0


def float_desk() -> Desk:
    return Desk(lambda handle: handle.get_map_state("m", "x double, s struct<y:float>", "n long"))


def test_floats_as_keys_of_a_map() -> None:
    desk = float_desk()
    nan = float("nan")
    with desk.call("ann") as m:
        for n, x in enumerate((nan, 0.0, 1.5, *range(2, 40))):
            m.update_value((x, (nan,)), (n,))
    desk.table.seal()
    older = desk.export()
    for again in (desk, desk.restored()):
        with again.call("ann") as m:
            assert m.get_value((-nan, (nan,))).n == 0
            m.update_value((-0.0, (nan,)), (-1,))
            m.remove_key((nan, (nan,)))
        delta = again.table.delta()
        assert unresolved(delta).all()
        other = float_desk()
        other.table.load(fold(older, delta))
        with other.call("ann") as m:
            assert [row.n for row in m.values()][:2] == [-1, 2]
            assert len(list(m.keys())) == 40
    with pytest.raises(FlowError, match="keys"):
        Desk(lambda handle: handle.get_map_state("m", "s struct<y:array<int>>", "n long"))


def test_cells_know_their_size() -> None:
    small, large = map_desk(), map_desk()
    for desk, count in ((small, 10), (large, 10_000)):
        with desk.call("ann") as m:
            for day in range(count):
                m.update_value((day,), (day,))
    assert large.table.nbytes - small.table.nbytes > 10_000 * 100
    lists = list_desk()
    before = lists.table.nbytes
    with lists.call("ann") as items:
        items.append_list([(n, "some text") for n in range(10_000)])
    assert lists.table.nbytes - before > 10_000 * 100


def photo_desk() -> Desk:
    return Desk(
        lambda handle: handle.get_value_state("photo", "bytes binary, title string"),
        lambda handle: handle.get_value_state("seen", "n long"),
    )


def test_a_large_value_that_has_not_changed_is_not_written() -> None:
    desk = photo_desk()
    with desk.call("ann") as (photo, seen):
        photo.update((b"a" * 5_000, "short"))
        seen.update((1,))
    assert not unresolved(desk.table.delta()).any()
    desk.table.seal()
    older = desk.export()
    with desk.call("ann") as (photo, seen):
        seen.update((2,))
    delta = desk.table.delta()
    assert delta.column("photo.__same~bytes").to_pylist() == [True]
    assert delta.column("photo.bytes").to_pylist() == [None]
    assert delta.column("photo.title").to_pylist() == ["short"]
    assert written(delta) < written(older) / 4
    assert fold(older, delta).equals(desk.export())

    with desk.call("ann") as (photo, seen):  # an equal value is the same, another one is not
        photo.update((bytes(bytearray(b"a" * 5_000)), "t" * 1_000))
    delta = desk.table.delta()
    assert delta.column("photo.__same~bytes").to_pylist() == [True]
    assert delta.column("photo.__same~title").to_pylist() == [False]
    assert fold(older, delta).equals(desk.export())


def test_a_value_of_an_entry_that_was_removed_or_is_new_is_written() -> None:
    desk = photo_desk()
    with desk.call("ann") as (photo, _):
        photo.update((b"a" * 5_000, None))
    desk.table.seal()
    with desk.call("ann") as (photo, _):
        photo.clear()
    assert desk.table.delta().column("__present").to_pylist() == [False]
    desk.table.seal()
    with desk.call("ann") as (photo, _):
        photo.update((b"a" * 5_000, None))
    delta = desk.table.delta()
    assert not unresolved(delta).any()
    assert delta.equals(desk.export())


def test_values_left_out_in_several_deltas_come_from_the_oldest() -> None:
    desk = photo_desk()
    with desk.call("ann") as (photo, seen):
        photo.update((b"a" * 5_000, "t" * 500))
    desk.table.seal()
    files = [desk.export()]
    for n in range(3):
        with desk.call("ann") as (photo, seen):
            seen.update((n,))
            photo.update((b"a" * 5_000, f"{n}" * 500 if n == 1 else photo.get().title))
        files.append(desk.table.delta())
        desk.table.seal()
    patches = fold(fold(files[1], files[2]), files[3])  # as in a run
    assert patches.column("photo.__same~bytes").to_pylist() == [True]
    assert patches.column("photo.__same~title").to_pylist() == [False]
    assert fold(files[0], patches).equals(desk.export())


def test_files_without_marks_of_values_are_complete() -> None:
    desk = photo_desk()
    with desk.call("ann") as (photo, _):
        photo.update((b"a", "b"))
    whole = desk.export()
    bare = whole.drop_columns(["photo.__same~bytes", "photo.__same~title"])
    assert completed(bare, whole.schema).equals(whole)
    assert not has_patches(pa.schema([("v.x", pa.string()), ("v.x~same", pa.bool_())]))
