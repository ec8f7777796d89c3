"""How state follows its slots when they change hands: one mechanism, five ways to use it.

    lazy(r)       all slots change hands at one epoch boundary, and an entry comes when a row needs
                  it; a trickle of r MB/s brings the rest, and with r = 0 nothing does
    all_at_once   all slots at one boundary, each of them whole before its rows are applied
    batched(n)    the same, n slots at a boundary
    fluid         the same, one slot at a boundary
    pause         like all_at_once, and no row of the step is applied before all slots are there

Penstock's own is lazy. The others are those of the literature, to compare with.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import SettingError

MigrationKind = Literal["lazy", "all_at_once", "batched", "fluid", "pause"]

TRICKLE_MB_S = 16.0
"""What plain "lazy" trickles: a GB comes within about a minute, at a small part of what a disk or a
network gives."""

_HINT = "write lazy, lazy(16) for a trickle of 16 MB/s, all_at_once, batched(8), fluid or pause"
_TEXT = re.compile(r"\s*([a-z_-]+)\s*(?:\(\s*([0-9.e+-]+)\s*\)\s*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Migration:
    """How state follows slots that change hands.

    >>> Migration.parse("batched(8)")
    Migration(kind='batched', slots_at_once=8, trickle_mb_s=0.0)
    >>> print(Migration.parse("lazy"))
    lazy(16)
    """

    kind: MigrationKind
    slots_at_once: int | None = None
    """How many slots of a step may change hands at one epoch boundary; None for all."""
    trickle_mb_s: float = 0.0
    """Lazy only: how fast a host brings, in the background, what no row has asked for; 0: never."""

    def __post_init__(self) -> None:
        at_once, rate = self.slots_at_once, self.trickle_mb_s
        limited = {"batched": at_once is not None and at_once >= 1, "fluid": at_once == 1}
        if (
            self.kind not in get_args(MigrationKind)
            or not limited.get(self.kind, at_once is None)
            or not (math.isfinite(rate) and (rate >= 0 if self.kind == "lazy" else rate == 0))
        ):
            raise SettingError(
                f"there is no migration {self.kind!r} with slots_at_once={at_once} and "
                f"trickle_mb_s={rate}",
                hint=_HINT,
            )

    @staticmethod
    def parse(text: str | Migration) -> Migration:
        """The migration that a text names. One that is given as such stays as it is.

        >>> Migration.parse("batched")
        Traceback (most recent call last):
        ...
        penstock.errors.SettingError: 'batched' is no migration. What to do: write lazy, lazy(16) \
for a trickle of 16 MB/s, all_at_once, batched(8), fluid or pause
        """
        if isinstance(text, Migration):
            return text
        match = _TEXT.fullmatch(text)
        kind, number = (match[1].lower().replace("-", "_"), match[2]) if match else ("", None)
        try:
            if kind == "lazy":
                return Migration("lazy", None, TRICKLE_MB_S if number is None else float(number))
            if kind == "batched" and number is not None:
                return Migration("batched", int(number))
            if kind == "fluid" and number is None:
                return Migration("fluid", 1)
            if kind == "all_at_once" and number is None:
                return Migration("all_at_once")
            if kind == "pause" and number is None:
                return Migration("pause")
        except (ValueError, SettingError):
            pass
        raise SettingError(f"{text!r} is no migration", hint=_HINT)

    @property
    def whole(self) -> bool:
        """Whether a slot has arrived whole before its rows are applied."""
        return self.kind != "lazy"

    def __str__(self) -> str:
        if self.kind == "lazy":
            return f"lazy({repr(float(self.trickle_mb_s)).removesuffix('.0')})"
        return f"batched({self.slots_at_once})" if self.kind == "batched" else self.kind
