"""Sets of slots as text: how people type them and how checkpoints keep them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import ProtocolError, SettingError

_PART = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def slots_from_text(text: str, slots: int) -> tuple[int, ...]:
    """The slots that a text names, in order and each once; `slots` is how many there are.

    >>> slots_from_text("20, 0-3", slots=64)
    (0, 1, 2, 3, 20)
    >>> slots_from_text("60-64", slots=64)
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: there is no slot 64. What to do: the slots here are 0-63
    """
    found: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise SettingError(
                f"{part.strip()!r} in {text!r} names no slots", hint='write for example "0-15,20"'
            )
        if last >= slots:
            raise SettingError(f"there is no slot {last}", hint=f"the slots here are 0-{slots - 1}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def must_be_slots(found: Iterable[int], slots: int) -> None:
    """Refuse a message that names slots which a step does not have; `slots` is how many it has."""
    wrong = [slot for slot in found if not 0 <= slot < slots]
    if wrong:
        raise ProtocolError(
            f"a message names slot {wrong[0]}, and the slots here are 0-{slots - 1}",
            hint="use the same flow and the same release of Penstock everywhere",
        )


def slots_to_text(slots: Iterable[int]) -> str:
    """The shortest text that names these slots; for no slots, none.

    >>> slots_to_text([20, 0, 1, 2, 3])
    '0-3,20'
    """
    ranges: list[list[int]] = []
    for slot in sorted(set(slots)):
        if ranges and slot == ranges[-1][1] + 1:
            ranges[-1][1] = slot
        else:
            ranges.append([slot, slot])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)
