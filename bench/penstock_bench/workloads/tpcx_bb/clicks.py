"""The clicks of any sessions, as an Arrow table.

A session is a few views, seconds or minutes apart, some with a long pause between them. Some end with a
cart, which is abandoned or taken to the checkout; most checkouts end with a purchase. Users and items
are skewed by Zipf's law. Sessions overlap, and the busiest users have several at once. A session depends
only on the seed and its number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.sim.skews import Zipf
from penstock_bench.workloads.draws import Draws, Numbers
from penstock_bench.workloads.tpcx_bb.config import PAGES, SCHEMAS, TIME, TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.draws import (
    HOUR_MS,
    begins_ms,
    companions,
    lengths,
    most_in,
    popular_items,
)

_MOST_VIEWS = 28
_MEAN_VIEWS = 7.0
_MOST_CLICKS = _MOST_VIEWS + 3
_SPAN_MS = 3 * HOUR_MS
"""Longest session in milliseconds."""
_VIEW, _CART, _CHECKOUT, _PURCHASE = range(len(PAGES))
_PER_CENT = {"only looks": 70, "leaves a cart": 20, "leaves the checkout": 3}
"""Percentage of sessions with each ending; the others end with a purchase."""
_UNKNOWN_PER_CENT = 10
"""Percentage of sessions of unknown users."""


def clicks(config: TpcxBbConfig, first: int, count: int) -> pa.Table:
    """The clicks from the start of session `first` to the start of session `first + count`.

    They are in order of time. With the last session, all remaining clicks are included.

    >>> config = TpcxBbConfig(sessions=100)
    >>> halves = [clicks(config, 0, 50), clicks(config, 50, 50)]
    >>> pa.concat_tables(halves).equals(clicks(config, 0, 100))
    True
    """
    last = min(first + count, config.sessions)
    if last <= first:
        return SCHEMAS["clicks"].empty_table()
    # Sessions that began earlier may still be open.
    earliest = max(first - most_in(_SPAN_MS, config.sessions_per_day), 0)
    sessions = np.arange(earliest, last, dtype=np.int64)
    at, place, kind = _pages(config, sessions)
    draws = Draws(config.seed, sessions[at] * _MOST_CLICKS + place)
    after = _after_ms(draws, place)
    times = begins_ms(sessions, config.sessions_per_day)[at] + after
    begin, end = begins_ms(np.array([first, last]), config.sessions_per_day).tolist()
    chosen = (after < _SPAN_MS) & (times >= begin)
    if last < config.sessions:
        chosen &= times < end
    # Ordered by time, and within a millisecond by session.
    order = np.flatnonzero(chosen)
    order = order[np.argsort(times[order], kind="stable")]
    at, place, kind, times = at[order], place[order], kind[order], times[order]
    user, known = _users(config, sessions)
    item = _items(config, sessions, at, place, kind)
    arrays = [
        pa.array(user[at], mask=~known[at]),
        pa.array(item, mask=kind == _CHECKOUT),
        pa.array(PAGES).take(pa.array(kind)),
        pa.array((config.base_ms + times) * 1000).cast(TIME),
    ]
    return pa.table(arrays, schema=SCHEMAS["clicks"])


def _pages(config: TpcxBbConfig, sessions: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """For each click: its session (as an index into `sessions`), its place in the session, and its page."""
    draws = Draws(config.seed, sessions)
    views = lengths(draws, "views", _MEAN_VIEWS, _MOST_VIEWS)
    ends = np.searchsorted(np.cumsum(list(_PER_CENT.values())), draws.below(100, "ends"), "right")
    clicks = views + ends
    cart = np.where(ends == 1, 1 + draws.below(views, "cart"), views)
    at = np.repeat(np.arange(len(sessions)), clicks)
    place = np.arange(len(at)) - np.repeat(np.cumsum(clicks) - clicks, clicks)
    kind = np.where((place == cart[at]) & (ends[at] > 0), _CART, _VIEW)
    beyond = place - views[at]
    kind = np.where((beyond > 0) & (ends[at] > 1), beyond + _CART, kind)
    return at, place, kind


def _after_ms(draws: Draws, place: Numbers) -> Numbers:
    """Milliseconds from the start of its session to each click."""
    pause = 4_000 + draws.below(90_000, "pause")
    long = draws.below(100, "long pause") < 3
    pause += np.where(long, (15 * 60_000) + draws.below(40 * 60_000, "how long"), 0)
    come = np.cumsum(np.where(place == 0, 0, pause))
    begun = np.maximum.accumulate(np.where(place == 0, come, 0))
    after: Numbers = come - begun
    return after


def _users(config: TpcxBbConfig, sessions: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    draws = Draws(config.seed, sessions)
    users = 1 + Zipf(config.user_exponent).ranks(config.users, draws.unit("user"))
    return users, draws.below(100, "known") >= _UNKNOWN_PER_CENT


def _items(
    config: TpcxBbConfig, sessions: Numbers, at: Numbers, place: Numbers, kind: Numbers
) -> Numbers:
    """The item of each click: the session's first item, a related one, or another."""
    wanted = popular_items(config, Draws(config.seed, sessions), "wanted")[at]
    draws = Draws(config.seed, sessions[at] * _MOST_CLICKS + place)
    how = draws.below(100, "how")
    other = np.where(
        how < 60, companions(config, wanted, draws, "like"), popular_items(config, draws, "item")
    )
    items: Numbers = np.where((place == 0) | (kind != _VIEW) | (how < 10), wanted, other)
    return items
