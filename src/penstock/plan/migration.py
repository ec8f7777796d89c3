"""Strategies for moving state with its slots: one mechanism, used in five ways.

    lazy          all slots move at one epoch boundary; an entry is fetched when a row needs it, and
                  the rest in the background, as fast as the load of the hosts allows
    lazy(r)       the same, with at most r MB/s in the background (with r = 0 nothing)
    all_at_once   all slots move at one boundary; rows of a slot wait until the whole slot is there
    batched(n)    the same, with n slots per boundary
    fluid         the same, with one slot per boundary
    pause         like all_at_once, but no row of the step is applied before all slots are there

Lazy is Penstock's own and the default. The others are from the literature, for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.call_text import made_of, number_text
from penstock.errors import SettingError

MigrationKind = Literal["lazy", "all_at_once", "batched", "fluid", "pause"]

UNCAPPED_MB_S = 1e6
"""Megabytes per second of plain "lazy": more than any network carries, so that only the load limits it."""

_HINT = "use lazy, lazy(16) for at most 16 MB/s, all_at_once, batched(8), fluid or pause"


@dataclass(frozen=True)
class Migration:
    """A strategy for moving state with its slots.

    >>> Migration.parse("batched(8)")
    Migration(kind='batched', slots_at_once=8, trickle_mb_s=0.0)
    >>> print(Migration.parse("lazy"))
    lazy
    """

    kind: MigrationKind
    slots_at_once: int | None = None
    """Maximum number of slots of a step that move at one epoch boundary; None: no limit."""
    trickle_mb_s: float = 0.0
    """Most megabytes per second of state that a host fetches in the background, for `lazy` only; 0: a host
    fetches only what rows need."""

    def __post_init__(self) -> None:
        at_once, rate = self.slots_at_once, self.trickle_mb_s
        limited = {"batched": at_once is not None and at_once >= 1, "fluid": at_once == 1}
        if (
            self.kind not in get_args(MigrationKind)
            or not limited.get(self.kind, at_once is None)
            or not (math.isfinite(rate) and (rate >= 0 if self.kind == "lazy" else rate == 0))
        ):
            raise SettingError(
                f"migration {self.kind} does not allow slots_at_once={at_once} with trickle_mb_s={rate}",
                hint=_HINT,
            )

    @staticmethod
    def parse(text: str | Migration) -> Migration:
        """Parse a migration's name and arguments. A `Migration` is returned as it is.

        >>> Migration.parse("batched")
        Traceback (most recent call last):
        ...
        penstock.errors.SettingError: unknown migration 'batched'. What to do: use lazy, lazy(16) \
for at most 16 MB/s, all_at_once, batched(8), fluid or pause
        """
        return text if isinstance(text, Migration) else made_of(text, "migration", _MAKERS, _HINT)

    @property
    def whole(self) -> bool:
        """Whether rows wait until their whole slot has arrived."""
        return self.kind != "lazy"

    def __str__(self) -> str:
        if self.kind == "lazy" and self.trickle_mb_s != UNCAPPED_MB_S:
            return f"lazy({number_text(self.trickle_mb_s)})"
        return f"batched({self.slots_at_once})" if self.kind == "batched" else self.kind


_MAKERS: dict[str, Callable[..., Migration]] = {
    "lazy": lambda rate=UNCAPPED_MB_S: Migration("lazy", None, float(rate)),
    "all_at_once": lambda: Migration("all_at_once"),
    "batched": lambda slots: Migration("batched", int(slots)),
    "fluid": lambda: Migration("fluid", 1),
    "pause": lambda: Migration("pause"),
}
