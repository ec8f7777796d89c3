"""Requests that split slots, move their parts and put them together again."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.driver.relocation import Relocation
from penstock.state.keys.slot_map import SlotMap


def slot_map(relocation: Relocation, step: str) -> SlotMap:
    return relocation.routes(step).slots


def halve(relocation: Relocation, step: str, slots: Iterable[int]) -> None:
    """Split each of these slots in the middle of its first hashes, once more if it is split already."""
    known, parts = slot_map(relocation, step), []
    for slot in sorted({slot % known.count for slot in slots}):
        for first, last in known.ranges(slot)[:1]:
            if first < last:
                parts.append([(first, (first + last) // 2)])
    relocation.split(step, parts)


def scatter(relocation: Relocation, step: str, number: int) -> None:
    """Move the extra slots of a step, one to each host in turn, and leave hash slots where they are."""
    known, hosts = slot_map(relocation, step), relocation.hosts(step)
    for extra in range(known.hashed, known.count):
        relocation.move(step, [extra], hosts[(extra + number) % len(hosts)])
