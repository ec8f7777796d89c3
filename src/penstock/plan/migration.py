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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.call_text import made_of, number_text
from penstock.errors import SettingError

MigrationKind = Literal["lazy", "all_at_once", "batched", "fluid", "pause"]

TRICKLE_MB_S = 16.0
"""What plain "lazy" trickles: a GB comes within about a minute, at a small part of what a disk or a
network gives."""

_HINT = "use lazy, lazy(16) for a trickle of 16 MB/s, all_at_once, batched(8), fluid or pause"


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
                f"unknown migration: kind {self.kind!r}, slots_at_once {at_once}, trickle_mb_s {rate}",
                hint=_HINT,
            )

    @staticmethod
    def parse(text: str | Migration) -> Migration:
        """The migration that a text names. One that is given as such stays as it is.

        >>> Migration.parse("batched")
        Traceback (most recent call last):
        ...
        penstock.errors.SettingError: unknown migration 'batched'. What to do: use lazy, lazy(16) \
for a trickle of 16 MB/s, all_at_once, batched(8), fluid or pause
        """
        return text if isinstance(text, Migration) else made_of(text, "migration", _MAKERS, _HINT)

    @property
    def whole(self) -> bool:
        """Whether a slot has arrived whole before its rows are applied."""
        return self.kind != "lazy"

    def __str__(self) -> str:
        if self.kind == "lazy":
            return f"lazy({number_text(self.trickle_mb_s)})"
        return f"batched({self.slots_at_once})" if self.kind == "batched" else self.kind


_MAKERS: dict[str, Callable[..., Migration]] = {
    "lazy": lambda rate=TRICKLE_MB_S: Migration("lazy", None, float(rate)),
    "all_at_once": lambda: Migration("all_at_once"),
    "batched": lambda slots: Migration("batched", int(slots)),
    "fluid": lambda: Migration("fluid", 1),
    "pause": lambda: Migration("pause"),
}
