"""The windows of a time, compared with the definition."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FlowError
from penstock.operators.operator import EpochTime
from penstock.operators.window.windows import (
    NO_HORIZON,
    UTC_TIME,
    Window,
    bounds_type,
    event_times,
    hopping,
    session_window,
    time_array,
    tumbling,
)

FAR = 1 << 59
windows = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 30)).map(
    lambda n: Window("hopping", max(n[:2]), min(n[:2]), n[2] % min(n[:2]))
) | st.integers(1, 30).map(lambda n: Window("tumbling", n, n, n // 2))
times = st.lists(st.integers(-60, 60) | st.integers(-FAR, FAR), max_size=8)


def starts_of(window: Window, time: int) -> list[int]:
    """All starts s = offset + k * every with s <= time < s + size."""
    first = (time - window.size_us - window.offset_us) // window.every_us
    last = (time - window.offset_us) // window.every_us
    starts = [window.offset_us + k * window.every_us for k in range(first, last + 2)]
    return [s for s in starts if s <= time < s + window.size_us]


@given(windows, times, st.none() | st.integers(-60, 60))
def test_a_time_is_in_the_windows_that_contain_it(
    window: Window, some: list[int], closed: int | None
) -> None:
    horizon = NO_HORIZON if closed is None else closed
    array = np.array(some, np.int64)
    wanted = [
        (i, start)
        for i, time in enumerate(some)
        for start in starts_of(window, time)
        if start + window.size_us > horizon
    ]
    panes = window.panes(array)
    for values in (array, panes):
        rows, starts = window.spread(values, horizon)
        assert list(zip(rows.tolist(), starts.tolist(), strict=True)) == wanted
        late = window.late(values, horizon)
        mask = [False] * len(some) if late is None else late.tolist()
        assert mask == [
            all(start + window.size_us <= horizon for start in starts_of(window, time))
            for time in some
        ]
    per_step = len({pane for pane in panes.tolist() if 0 <= pane < window.every_us})
    assert per_step <= 2


@given(st.integers(1, 50), times, st.integers(-60, 60))
def test_a_row_alone_is_a_session_until_the_gap_is_over(
    gap: int, some: list[int], horizon: int
) -> None:
    window, array = Window("session", gap, gap), np.array(some, np.int64)
    late = window.late(array, horizon)
    mask = [False] * len(some) if late is None else late.tolist()
    assert mask == [time + gap <= horizon for time in some]
    rows, starts = window.spread(array, horizon)
    assert starts.tolist() == [time for time in some if time + gap > horizon]
    assert rows.tolist() == [i for i, time in enumerate(some) if time + gap > horizon]
    assert window.panes(array).tolist() == some


def test_the_horizon_is_the_watermark_less_the_lateness() -> None:
    window = tumbling("10s")
    assert window.horizon(EpochTime(0, 5, None)) == NO_HORIZON
    assert window.horizon(EpochTime(0, 5, 20_000), 5_000) == 15_000_000
    assert window.horizon(EpochTime(0, 5, -(1 << 62))) == NO_HORIZON
    assert window.horizon(EpochTime(0, 5, 1 << 62)) == 1 << 61
    by_day = tumbling("10s", clock="processing")
    assert by_day.horizon(EpochTime(0, 5, 20_000)) == NO_HORIZON


def test_windows_are_made_of_durations() -> None:
    assert tumbling("10s") == Window("tumbling", 10_000_000, 10_000_000)
    assert tumbling(0.25, offset="1.3 s") == Window("tumbling", 250_000, 250_000, 50_000)
    assert tumbling("1 day", offset=-3600).offset_us == 23 * 3_600_000_000
    assert hopping("10s", "2s") == Window("hopping", 10_000_000, 2_000_000)
    assert session_window("1m", clock="processing").clock == "processing"
    assert pickle.loads(pickle.dumps(hopping(5, 2))) == hopping(5, 2)
    assert str(hopping("10s", "2s", offset="1s")) == "hopping 10 s every 2 s from 1 s"
    assert str(tumbling("1s", clock="processing")) == "tumbling 1 s of processing time"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: tumbling(0), "cannot be 0 s long"),
        (lambda: tumbling(-1), "cannot be -1 s long"),
        (lambda: hopping("1s", 0), "every 0 s"),
        (lambda: hopping("1s", "2s"), "leave out the rows between them"),
        (lambda: session_window("0.0001 ms"), "cannot be 0 s"),
        (lambda: tumbling("soon"), "is not a duration"),
        (lambda: tumbling(1e14), "is too long"),
    ],
)
def test_impossible_windows_are_refused_with_advice(make: Any, complaint: str) -> None:
    with pytest.raises(FlowError, match=f"{complaint}.*What to do"):
        make()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_type_survive(unit: str, zone: str | None) -> None:
    type = pa.timestamp(unit, zone)
    column = pa.array([-3, None, 5, 10**6], type)
    micros = event_times(pa.chunked_array([column.slice(0, 1), column.slice(1)]))
    scale = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[unit]
    wanted = [-1, 0, 1000] if unit == "ns" else [-3 * scale, 5 * scale, 10**6 * scale]
    assert micros[[0, 2, 3]].tolist() == wanted
    back = time_array(micros[2:], type)
    assert back.type == type
    assert event_times(back).tolist() == micros[2:].tolist()


def test_times_out_of_range_are_refused() -> None:
    with pytest.raises(FlowError, match="further from 1970 than"):
        event_times(pa.array([10**15], pa.timestamp("s")))
    with pytest.raises(FlowError, match="out of the range"):
        time_array(np.array([1 << 58]), pa.timestamp("ns"))
    assert event_times(pa.array([], pa.timestamp("s"))).tolist() == []
    year_one = pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)], pa.timestamp("s"))
    assert time_array(event_times(year_one), pa.timestamp("s")).equals(year_one)


def test_the_bounds_are_of_the_type_of_the_event_time() -> None:
    schema = pa.schema([("at", pa.timestamp("s", "UTC")), ("n", pa.int64())])
    assert bounds_type(schema, tumbling("10s"), "at", 0) == pa.timestamp("s", "UTC")
    assert bounds_type(schema, tumbling("10s", clock="processing"), None, 0) == UTC_TIME


@pytest.mark.parametrize(
    ("window", "on", "lateness", "complaint"),
    [
        (tumbling("1s"), "nix", 0, "'nix' of the window is not among"),
        (tumbling("1s"), "n", 0, "is of type int64"),
        (tumbling("1s"), None, 0, "needs a column of event times"),
        (tumbling("250ms"), "at", 0, "finer than the event time"),
        (tumbling("1s"), "at", -1, "lateness is -1 ms"),
        (tumbling("1s", clock="processing"), "at", 0, "takes no event time"),
        (tumbling("1s", clock="processing"), None, 5, "no lateness"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    window: Window, on: str | None, lateness: int, complaint: str
) -> None:
    schema = pa.schema([("at", pa.timestamp("s", "UTC")), ("n", pa.int64())])
    with pytest.raises(FlowError, match=f"{complaint}.*What to do"):
        bounds_type(schema, window, on, lateness)
