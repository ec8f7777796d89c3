"""Rows of event-time flows: functions that make them, and expected aggregates of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from tests.trials.event_twins import Rows
from tests.trials.plain_rows import Row

KEYS = 9
_TIME = pa.timestamp("us", "UTC")
CLICKS = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("v", pa.int64()), ("ts", _TIME)])
OFFERS = pa.schema([("k", pa.int64()), ("w", pa.string()), ("ts", _TIME)])
LOTS = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("ts", _TIME), ("expires", _TIME)])
ROUTED = CLICKS.append(pa.field("p", pa.string()))
PAIRS = pa.schema([("k", pa.int64()), ("v", pa.int64())])

Make = Callable[[random.Random, int], Row]
"""Function that makes a row of a source with an event time."""


def click(pick: random.Random, time: int) -> Row:
    return {"k": pick.randrange(KEYS), "g": pick.randrange(3), "v": pick.randrange(20), "ts": time}


def offer(pick: random.Random, time: int) -> Row:
    return {"k": pick.randrange(KEYS), "w": pick.choice(("", "low", "hÿgh" * 9)), "ts": time}


def lot(pick: random.Random, time: int) -> Row:
    row = {"k": pick.randrange(KEYS), "g": pick.randrange(3), "ts": time}
    return row | {"expires": time + pick.randrange(-500, 5_000)}


def nameless(make: Make) -> Make:
    """Make rows of which some have no key."""

    def made(pick: random.Random, time: int) -> Row:
        return make(pick, time) | ({"k": None} if pick.random() < 0.1 else {})

    return made


def timeless(pick: random.Random, time: int) -> Row:
    """A row that sometimes has no event time."""
    return click(pick, time) | ({"ts": None} if pick.random() < 0.2 else {})


def routed(pick: random.Random, time: int) -> Row:
    """A row of one of three partitions: two are idle for seconds in turn, and one is behind."""
    part = pick.choice((("even", "odd")[time // 4_000 % 2], "slow"))
    row = click(pick, time - 700 if part == "slow" else time)
    return row | {"p": part}


def pair(pick: random.Random, time: int) -> Row:
    return {"k": pick.randrange(KEYS), "v": pick.randrange(3)}


def sums(rows: Rows) -> Row:
    v = [row["v"] for row in rows]
    return {"n": len(v), "total": sum(v), "high": max(v), "kinds": len(set(v))}


def counted(rows: Rows) -> Row:
    return {"n": len(rows)}


def totals(rows: Rows) -> Row:
    return {"n": len(rows), "total": sum(row["v"] for row in rows)}


def with_offer(left: Row, right: Row | None) -> Row:
    more = {"w": None, "ts_right": None} if right is None else right | {"ts_right": right["ts"]}
    return more | left


def bid_on(left: Row, right: Row | None) -> Row:
    assert right is not None
    return left | {"v": right["v"], "ts_right": right["ts"], "g_right": right["g"]}


def with_click(left: Row, right: Row | None) -> Row:
    if right is None:
        return left | {"g_right": None, "v_right": None, "ts_right": None}
    return left | {f"{name}_right": right[name] for name in ("g", "v", "ts")}
