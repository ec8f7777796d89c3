"""What the couriers of an epoch told of burst workers, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.wire.report import Offloaded, Seen


def by_segment(seen: Iterable[Seen]) -> dict[str, Offloaded]:
    """What couriers handed to burst workers, added up over them; of the times that they waited, the longest.

    >>> one = Seen(9, offloaded=(Offloaded("sum", 5, 2, 1, {}, 0, 40),))
    >>> other = Seen(9, offloaded=(Offloaded("sum", 4, 0, 1, {"timeout": 1}, 4, 70),))
    >>> both = by_segment([one, other])["sum"]
    >>> both.rows, both.records, both.failures, both.returned, both.wait_ms
    (9, 2, {'timeout': 1}, 4, 70)
    """
    found: dict[str, Offloaded] = {}
    for task in seen:
        for told in task.offloaded:
            old = found.get(told.segment)
            found[told.segment] = told if old is None else _both(old, told)
    return found


def _both(one: Offloaded, other: Offloaded) -> Offloaded:
    return Offloaded(
        one.segment,
        one.rows + other.rows,
        one.records + other.records,
        one.invocations + other.invocations,
        dict(Counter(one.failures) + Counter(other.failures)),
        one.returned + other.returned,
        max(one.wait_ms, other.wait_ms),
    )
