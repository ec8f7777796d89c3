"""Sets of slots as text such as 0-3,20, as users type them and checkpoints store them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import ProtocolError, SettingError

_PART = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def slots_from_text(text: str, slots: int) -> tuple[int, ...]:
    """Parse the slots in a text, sorted and without duplicates. `slots` is the number of slots that exist.

    >>> slots_from_text("20, 0-3", slots=64)
    (0, 1, 2, 3, 20)
    >>> slots_from_text("60-64", slots=64)
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: there is no slot 64. What to do: use slots 0-63
    """
    chosen: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise SettingError(
                f"{part.strip()!r} in {text!r} is not a slot or a range of slots",
                hint='write for example "0-15,20"',
            )
        if last >= slots:
            raise SettingError(f"there is no slot {last}", hint=f"use slots 0-{slots - 1}")
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def must_be_slots(named: Iterable[int], slots: int) -> None:
    """Raise a `ProtocolError` if a message names slots that a step with `slots` slots does not have."""
    wrong = [slot for slot in named if not 0 <= slot < slots]
    if wrong:
        raise ProtocolError(
            f"a message names slot {wrong[0]}, but this step has slots 0-{slots - 1}",
            hint="use the same flow and the same release of Penstock everywhere",
        )


def slots_to_text(slots: Iterable[int]) -> str:
    """The shortest text for these slots; an empty text for no slots.

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
