"""Splitting of slots that are too hot for any host although no single key is. Pure.

A slot is divided into parts of about equal load. Its most frequent keys are known by name. All others are
assumed to be spread evenly over the hashes of the slot. The parts are slots like others from then on, and
policies move them as they see fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.control.examine.vitals import Floats, Ints
from penstock.state.keys.slot_map import Range, SlotMap, joined, less

_FULL = 0.5
"""Part of what a host can take that one part of a slot should bring. Smaller parts are easier to balance."""
_MOST_PARTS = 16
_NAMED = 0.02
"""Share of a slot's records from which a key is placed by itself."""
_LITTLE = 0.05
"""Share of a slot's records up to which all other keys stay together."""
_RELIEF = 0.9
"""Share of the slot's load that the largest part may have, for a split to be worth it."""
_COOL, _COOL_MS = 0.5, 60_000.0
"""Part of what a host can take that a slot must stay below, as a whole, and milliseconds for which it must,
before its parts are put together again."""


@dataclass(frozen=True)
class Division:
    """A slot divided into parts."""

    parts: tuple[tuple[Range, ...], ...]
    """Hashes of each part, apart from the one that stays."""
    rates: tuple[float, ...]
    """Expected arrivals of all parts in records per second. The first one is that of the part that stays."""


def divide(
    ranges: Sequence[Range], keys: Mapping[int, float], rate: float, room: float
) -> Division | None:
    """Divide a slot; None if that would not help.

    `ranges` are the hashes of the slot, `keys` the arrivals of its known keys by hash, and `rate` those of
    the slot, in records per second. `room` is what a host can take.

    >>> divide([(0, 99)], {10: 400.0, 20: 400.0, 30: 400.0}, 1200.0, room=1000.0)
    Division(parts=(((20, 20),), ((30, 30),)), rates=(400.0, 400.0, 400.0))
    >>> divide([(0, 99)], {}, 1000.0, room=1000.0)
    Division(parts=(((50, 99),),), rates=(500.0, 500.0))
    >>> divide([(0, 99)], {10: 1100.0}, 1200.0, room=1000.0) is None
    True
    """
    count = min(_MOST_PARTS, max(2, math.ceil(rate / (_FULL * room))))
    named = {h: r for h, r in sorted(keys.items(), key=lambda kv: -kv[1]) if r >= _NAMED * rate}
    loads, holds = np.zeros(count), [list[Range]() for _ in range(count)]
    for hash, arrivals in named.items():
        part = int(loads.argmin())
        loads[part] += arrivals
        holds[part].append((hash, hash))
    rest = max(0.0, rate - loads.sum())
    portions = np.zeros(count)
    if rest > _LITTLE * rate:
        portions = _filled(loads, rest)
        others = less(ranges, [(hash, hash) for hash in named])
        for part, some in enumerate(_cut(others, portions / rest)):
            holds[part] += some
    else:
        portions[0] = rest
    loads += portions
    used = [part for part in range(count) if part == 0 or holds[part]]
    rates = tuple(float(loads[part]) for part in used)
    if len(used) < 2 or max(rates) > _RELIEF * rate:
        return None
    return Division(tuple(joined(holds[part]) for part in used[1:]), rates)


class CoolSlots:
    """Finds split slots that a single host could take again, for a minute, with room to spare.

    >>> slots = SlotMap(2).with_split([(0, 5)])
    >>> cool, rate = CoolSlots(), np.array([100.0, 9000.0, 100.0])
    >>> [cool.look(1000.0 * second, slots, rate, room=1000.0) for second in (0, 59, 60)]
    [[], [], [0]]
    """

    def __init__(self) -> None:
        self._since_ms: dict[int, float] = {}
        """Hash slot -> time since which it is cool."""

    def look(self, now_ms: float, slots: SlotMap, rate: Floats, room: float) -> list[int]:
        """The hash slots whose parts should be put together. `rate` is by slot, in records per second.

        Slots that a user has split stay as they are.
        """
        split = {
            int(slots.parents[slots.hashed + i])
            for i, part in enumerate(slots.splits)
            if part.ranges and not part.lasting
        }
        parents: Ints = slots.parents
        whole = np.bincount(parents, rate, slots.count)
        cool = {slot for slot in split if whole[slot] < _COOL * room}
        self._since_ms = {slot: self._since_ms.get(slot, now_ms) for slot in cool}
        return [
            slot for slot, since in sorted(self._since_ms.items()) if now_ms - since >= _COOL_MS
        ]


def _filled(loads: Floats, amount: float) -> Floats:
    """How much each part gets of an amount, so that the least loaded ones are level afterwards.

    >>> _filled(np.array([4.0, 1.0, 2.0]), 3.0).tolist()
    [0.0, 2.0, 1.0]
    """
    order = np.sort(loads)
    for parts in range(len(order), 0, -1):
        level = (amount + order[:parts].sum()) / parts
        if level >= order[parts - 1]:
            break
    share: Floats = np.maximum(level - loads, 0.0)
    return share


def _cut(ranges: Sequence[Range], shares: Floats) -> list[list[Range]]:
    """Cut ranges into consecutive pieces, each with this share of all their hashes."""
    left, total = list(ranges), sum(last - first + 1 for first, last in ranges)
    pieces, done, ends = [], 0, np.cumsum(shares).tolist()
    for end in [*ends[:-1], 1.0]:
        wanted, piece = round(total * min(end, 1.0)) - done, list[Range]()
        done += max(wanted, 0)
        while wanted > 0 and left:
            first, last = left.pop(0)
            cut = min(last, first + wanted - 1)
            piece.append((first, cut))
            wanted -= cut - first + 1
            if cut < last:
                left.insert(0, (cut + 1, last))
        pieces.append(piece)
    return pieces
