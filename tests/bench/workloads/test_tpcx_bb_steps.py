"""The processors of the TPCx-BB queries, compared with models that process one row at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.operators.operator import CHANGE
from penstock.testing import ProcessorTester
from penstock_bench.workloads.tpcx_bb.queries.q1 import Baskets
from penstock_bench.workloads.tpcx_bb.queries.q2 import Leaders, Sessions
from penstock_bench.workloads.tpcx_bb.queries.q3 import DAYS_US, LAST, LastViews, MostViewed
from penstock_bench.workloads.tpcx_bb.queries.q15 import Trends, slope

START = datetime(2003, 1, 1, tzinfo=UTC)
Rows = list[tuple[Any, ...]]

small = st.integers(0, 5)
cuts = st.lists(st.integers(0, 40), max_size=3)
cases = settings(max_examples=60, deadline=None)


def fed(
    processor: ps.KeyedProcessor, columns: str, key: str | list[str], rows: Rows, at: list[int]
) -> Rows:
    """All output of a processor for rows in epochs cut at these places."""
    tester = ProcessorTester(processor, columns, key, slots=2)
    places = sorted({0, len(rows), *(place for place in at if place < len(rows))})
    output: Rows = []
    for begin, end in pairwise(places):
        output += [tuple(row) for row in tester.feed(rows[begin:end])]
    return output


def left(changes: Rows) -> Counter[tuple[Any, ...]]:
    """The rows that remain after changes. No row may be added twice, or removed if it is not there."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in changes:
        found[row[:-1]] += row[-1]
    assert set(found.values()) <= {0, 1}
    return +found


def timed(steps: Sequence[Any], unit: timedelta) -> list[tuple[Any, ...]]:
    """Rows with times, computed from the gaps between them."""
    time, found = START, []
    for gap, *rest in steps:
        time += gap * unit
        found.append((time, *rest))
    return found


@cases
@given(st.lists(st.tuples(small, small), max_size=40), cuts)
def test_pairs_of_a_basket(lines: list[tuple[int, int]], at: list[int]) -> None:
    rows: Rows = [(ticket, item, START) for ticket, item in lines]
    columns = "ticket long, item long, sold_at timestamp"
    baskets: dict[int, list[int]] = defaultdict(list)
    expected: Counter[tuple[int, int]] = Counter()
    for ticket, item in lines:
        if item not in baskets[ticket]:
            expected.update((min(item, other), max(item, other)) for other in baskets[ticket])
            baskets[ticket].append(item)
    assert Counter(row[:2] for row in fed(Baskets(), columns, "ticket", rows, at)) == expected


@cases
@given(st.lists(st.tuples(st.sampled_from([0, 1, 20, 60]), small, small), max_size=40), cuts)
def test_items_of_a_session(views: list[tuple[int, int, int]], at: list[int]) -> None:
    steps = timed(views, timedelta(minutes=1))
    rows: Rows = [(user, item, time) for time, user, item in steps]
    sessions: dict[int, list[int]] = {}
    seen: dict[int, datetime] = {}
    expected: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for user, item, time in rows:
        if user not in seen or time - seen[user] >= timedelta(hours=1):
            sessions[user] = []
        known = item in sessions[user]
        expected[item, () if known else tuple(sessions[user])] += 1
        sessions[user] += [] if known else [item]
        seen[user] = time
    columns = "user long, item long, clicked_at timestamp"
    found = fed(Sessions(), columns, "user", rows, at)
    assert Counter((item, tuple(before)) for item, before in found) == expected


@cases
@given(st.lists(st.tuples(st.integers(0, 4), small, small, st.booleans()), max_size=40), cuts)
def test_views_before_a_purchase(clicks: list[tuple[int, int, int, bool]], at: list[int]) -> None:
    steps = timed(clicks, timedelta(days=1))
    rows: Rows = [(user, item, time, bought) for time, user, item, bought in steps]
    views: dict[int, list[tuple[int, datetime]]] = defaultdict(list)
    expected: Counter[tuple[int, int]] = Counter()
    for user, item, time, bought in rows:
        if bought:
            newest = views[user][-LAST:]
            ago = timedelta(microseconds=DAYS_US)
            expected.update((item, viewed) for viewed, seen in newest if time - seen <= ago)
        else:
            views[user].append((item, time))
    columns = "user long, item long, clicked_at timestamp, bought boolean"
    assert Counter(fed(LastViews(), columns, "user", rows, at)) == expected


@cases
@given(st.lists(st.tuples(small, small), max_size=40), cuts)
def test_most_viewed(rows: Rows, at: list[int]) -> None:
    counts, expected = Counter(rows), Counter[tuple[Any, ...]]()
    for bought in {row[0] for row in rows}:
        mine = [(-n, viewed) for (b, viewed), n in counts.items() if b == bought]
        expected.update((bought, viewed, -n) for n, viewed in sorted(mine)[:2])
    found = fed(MostViewed(2), "bought long, viewed long", "bought", rows, at)
    assert left(found) == expected


@cases
@given(st.lists(st.tuples(small, small), max_size=40), cuts)
def test_leaders(pairs: Rows, at: list[int]) -> None:
    """Counts only grow, as in an aggregate."""
    counts: Counter[tuple[int, int]] = Counter()
    rows: Rows = []
    for pair in pairs:
        counts[pair] += 1
        rows.append((*pair, counts[pair]))
    best = sorted((-n, pair) for pair, n in counts.items())[:3]
    expected = Counter((*pair, -n) for n, pair in best)
    columns = "item_1 long, item_2 long, n long"
    assert left(fed(Leaders(3), columns, [], rows, at)) == expected


@cases
@given(st.lists(st.tuples(small, small, st.integers(-9, 9)), max_size=40), cuts)
def test_trends(rows: Rows, at: list[int]) -> None:
    sums: dict[int, Counter[int]] = defaultdict(Counter)
    for category, day, cents in rows:
        sums[category][day] += cents
    expected: Counter[tuple[Any, ...]] = Counter()
    for category, days in sums.items():
        found = slope(list(days), list(days.values()))
        if found is not None and found <= 0:
            expected[category, found] += 1
    output = fed(Trends(), "category long, day long, cents long", "category", rows, at)
    assert left(output) == expected


def test_changes_are_told_as_such() -> None:
    processors: list[Callable[[], ps.KeyedProcessor]] = [Leaders, MostViewed, Trends]
    assert all(CHANGE in make().output_schema.names for make in processors)
