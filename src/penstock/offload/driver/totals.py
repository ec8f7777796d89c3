"""What the couriers of an epoch told of burst workers, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from penstock.wire.report import OffloadCounts, Offloaded, Seen


def by_segment(seen: Iterable[Seen]) -> dict[str, Offloaded]:
    """What couriers handed to burst workers, added up over them; of the times that they waited, the longest.

    >>> one = Offloaded("sum", rows=5, records=2, invocations=1, wait_ms=40)
    >>> other = Offloaded("sum", rows=4, invocations=1, failures={"timeout": 1}, wait_ms=70)
    >>> both = by_segment([Seen(9, offloaded=(one,)), Seen(9, offloaded=(other,))])["sum"]
    >>> both.rows, both.records, both.failures, both.wait_ms
    (9, 2, {'timeout': 1}, 70)
    """
    groups: dict[str, list[Offloaded]] = {}
    for told in (told for task in seen for told in task.offloaded):
        groups.setdefault(told.segment, []).append(told)
    return {
        segment: Offloaded(segment, **asdict(replace(added(told), wait_ms=_longest(told))))
        for segment, told in groups.items()
    }


def added(told: Sequence[OffloadCounts]) -> OffloadCounts:
    """All of these together, the times that were waited too."""
    names = ("rows", "records", "invocations", "returned", "wait_ms")
    sums = {name: sum(getattr(one, name) for one in told) for name in names}
    failures = sum((Counter(one.failures) for one in told), Counter[str]())
    return OffloadCounts(failures=dict(failures), **sums)


def _longest(told: Sequence[OffloadCounts]) -> float:
    return max(one.wait_ms for one in told)
