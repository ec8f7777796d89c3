"""Rows, epochs and results for the tests of steps with windows."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.operators.window.plan import WindowPlan
from tests.operators.trials import MISHAPS, Epoch, Outcome, Row, run
from tests.operators.window_model import Emitted, Model, Place

UTC_TYPE = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("k", pa.string()), ("j", pa.int64()), ("at", UTC_TYPE), ("v", pa.int64()), ("s", pa.string())]
)
AGGREGATES = {
    "n": ps.count(),
    "total": ps.sum("v"),
    "most": ps.max("v"),
    "mean": ps.avg("v"),
    "text": ps.min("s"),
    "values": ps.count_distinct("v"),
}
ORIGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def when(ms: int) -> dt.datetime:
    return ORIGIN + dt.timedelta(milliseconds=ms)


def micros(time: dt.datetime) -> int:
    return (time - ORIGIN) // dt.timedelta(microseconds=1)


def by_event(row: Row, epoch: Epoch) -> int:
    return micros(row["at"])


def by_day(row: Row, epoch: Epoch) -> int:
    return epoch.now_ms * 1000


def rows_near(ms: int) -> st.SearchStrategy[Row]:
    """Rows with times around `ms`, in milliseconds."""
    return st.fixed_dictionaries(
        {
            "k": st.sampled_from("ab"),
            "j": st.integers(0, 1),
            "at": st.integers(ms - 14, ms + 10).map(when),
            "v": st.none() | st.integers(-3, 3),
            "s": st.none() | st.sampled_from(["", "x", "yy"]),
        }
    )


@st.composite
def epochs_of(draw: st.DrawFn) -> list[Epoch]:
    """Epochs with rising clocks; the last one may be final."""
    epochs, watermark, now = [], None, draw(st.integers(0, 20))
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.integers(0, 12) | st.none())
        if step is not None:
            watermark = step - 5 if watermark is None else watermark + step
        rows = st.lists(rows_near(watermark or 0), max_size=8)
        channels = st.lists(rows, min_size=1, max_size=3)
        now += draw(st.integers(0, 8))
        mishap = draw(st.sampled_from(MISHAPS))
        epochs.append(Epoch(draw(channels), watermark, now, mishap=mishap))
    epochs[-1].final = draw(st.booleans())
    return epochs


def results(rows: list[Row]) -> Place:
    values = [row["v"] for row in rows if row["v"] is not None]
    texts = [row["s"] for row in rows if row["s"] is not None]
    return (
        len(rows),
        sum(values) if values else None,
        max(values, default=None),
        sum(values) / len(values) if values else None,
        min(texts, default=None),
        len(set(values)),
    )


def wanted(rows: list[Emitted]) -> Counter[Place]:
    return Counter((*g.place, *results(g.rows)) for g in rows)


def got(rows: list[Row], keys: list[str]) -> Counter[Place]:
    return Counter(
        (
            *(row[key] for key in keys),
            micros(row["window_start"]),
            micros(row["window_end"]),
            *(row[name] for name in AGGREGATES),
        )
        for row in rows
    )


def got_changes(rows: list[Row], keys: list[str]) -> Counter[Place]:
    """Rows with their `_change`: 1 if put in, -1 if taken back."""
    return Counter((*values, row["_change"]) for row in rows for values in got([row], keys))


def key_of(rows: list[Row]) -> Counter[Place]:
    return Counter(tuple(row[name] for name in SCHEMA.names) for row in rows)


def follow(plan: WindowPlan, model: Model, epochs: list[Epoch], keys: list[str]) -> Outcome:
    """Run epochs through the step and the model, and check that output and late rows are the same."""
    outcome = run(plan, epochs)
    for number, epoch in enumerate(epochs):
        out, late = model.run(epoch)
        assert got(outcome.rows[number], keys) == wanted(out)
        assert key_of(outcome.late[number]) == key_of(late)
    return outcome
