"""The map from hashes to slots: splits refine it, and ending them restores it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import codec
from penstock.errors import ProtocolError
from penstock.plan.epoch import RouteTable
from penstock.state.keys.codec import slots_of
from penstock.state.keys.slot_map import SlotMap, Split

hashes = st.integers(0, (1 << 64) - 1)


def of(slots: SlotMap, *some: int) -> list[int]:
    return slots.of(np.array(some, np.uint64)).tolist()


@given(
    hashed=st.integers(1, 70),
    keys=st.lists(hashes, min_size=1, max_size=12, unique=True),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    data=st.data(),
)
def test_splits_refine_slots(
    hashed: int, keys: list[int], cuts: list[int], data: st.DataObject
) -> None:
    slots = SlotMap(hashed)
    for key in keys:
        (slot,) = of(slots, key)
        before = slots
        slots = slots.with_split([(key, key)])
        (extra,) = of(slots, key)
        assert extra >= hashed
        assert slots.parent(extra) == slots_of(np.array([key], np.uint64), hashed)[0]
        assert slots.origins(before)[extra] == slot
    for cut in cuts:
        slot = cut % slots.count
        if ranges := slots.ranges(slot):
            first, last = ranges[0]
            before, slots = slots, slots.with_split([(first, (first + last) // 2)])
            assert all(set(parts) == {slot} for _, parts in slots.sources(before))
    # every hash is in the slot that has its range, and the parts of a hash slot are disjoint
    near = sorted({k for key in keys for k in (max(key - 1, 0), key, min(key + 1, (1 << 64) - 1))})
    for hash, slot in zip(near, of(slots, *near), strict=True):
        assert any(first <= hash <= last for first, last in slots.ranges(slot))
        assert slots.parents[slot] == slots_of(np.array([hash], np.uint64), hashed)[0]
    total = sum(
        last - first + 1 for slot in range(slots.count) for first, last in slots.ranges(slot)
    )
    assert total == 1 << 64
    routes = RouteTable((), np.zeros(slots.count, np.int32), slots.splits)
    assert codec.decode(codec.encode(routes), RouteTable).slots == slots
    ended = data.draw(st.sets(st.sampled_from(range(hashed, slots.count)))) if keys else set()
    less = slots.without(ended)
    assert of(less, *near) == [
        slot if slot not in ended else int(slots.parents[slot]) for slot in of(slots, *near)
    ]
    assert slots.without(range(hashed, slots.count)) == SlotMap(hashed)


def test_vacant_numbers_are_used_again() -> None:
    slots = SlotMap(2).with_split([(5, 5)]).with_split([(7, 7)]).without([2])
    assert slots.splits == (Split(), Split(((7, 7),)))
    again = slots.with_split([(9, 9)])
    assert of(again, 5, 7, 9) == [0, 3, 2]
    assert again.sources(slots) == [(2, [0])]
    assert SlotMap(2).origins(again).tolist() == [0, 1]


def test_ranges_that_overlap_are_refused() -> None:
    with pytest.raises(ProtocolError, match="overlap"):
        SlotMap(2, (Split(((1, 5),)), Split(((5, 9),))))
