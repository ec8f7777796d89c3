"""A counter of sessions per key, with a timer: user code with state, on Penstock and on Spark.

A session of a key ends when it had no click for longer than `GAP_MS` of event time. Its row (key, clicks,
time of the last click) is emitted by the first click after it, or by a timer. So the rows do not depend on
when timers fire. All sides keep the same state and set the same timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock as ps

GAP_MS = 1000
OUTPUT = "k long, clicks long, last long"
_STATE = "clicks long, last long"


class Sessions(ps.KeyedProcessor):
    """One call per key, in Python."""

    output_schema = OUTPUT

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.get_value_state("session", _STATE)

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        clicks, last = self.session.get((0, 0))
        if clicks > 0:
            self.handle.delete_timer(last + GAP_MS + 1, time="event")
        for row in rows:
            if clicks > 0 and row.at > last + GAP_MS:
                yield key[0], clicks, last
                clicks = 0
            clicks += 1
            last = row.at
        self.session.update((clicks, last))
        self.handle.register_timer(last + GAP_MS + 1, time="event")

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        session = self.session.get((0, 0))
        yield key[0], session.clicks, session.last
        self.session.clear()


class CompiledSessions(Sessions):
    """The same code, compiled."""

    handle_input_rows = ps.compiled(Sessions.handle_input_rows)
    handle_expired_timer = ps.compiled(Sessions.handle_expired_timer)


class VectorisedSessions(Sessions):
    """One call for all keys of a slot."""

    handle_input_rows = ps.KeyedProcessor.handle_input_rows  # type: ignore[assignment]

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        keys, at = (batch.column(name).to_numpy() for name in ("k", "at"))
        order = np.argsort(keys, kind="stable")
        keys, at = keys[order], at[order]
        new_key = np.concatenate([[True], keys[1:] != keys[:-1]])
        starts = np.flatnonzero(new_key | np.concatenate([[True], np.diff(at) > GAP_MS]))
        ends = np.concatenate([starts[1:], [len(keys)]])
        k, clicks, last = keys[starts], ends - starts, at[ends - 1]
        opens = new_key[starts]
        closes = np.concatenate([opens[1:], [True]])
        # each key's first row and its state before
        firsts = batch.take(pa.array(order[starts[opens]]))
        held = self.session.get_many(firsts)
        known = held.is_valid().to_numpy(zero_copy_only=False)
        before, seen = (
            held.field(at).fill_null(0).to_numpy(zero_copy_only=False) for at in range(2)
        )
        self.handle.delete_timers(firsts, _times(seen, known), time="event")
        goes_on = known & (at[starts[opens]] <= seen + GAP_MS)
        clicks[opens] += np.where(goes_on, before, 0)
        over = known & ~goes_on
        new = pa.record_batch({"clicks": clicks[closes], "last": last[closes]})
        self.session.update_many(firsts, new)
        self.handle.register_timers(firsts, _times(last[closes]), time="event")
        ended = [
            np.concatenate([some[over], others[~closes]])
            for some, others in ((k[opens], k), (before, clicks), (seen, last))
        ]
        return pa.record_batch(dict(zip(("k", "clicks", "last"), ended, strict=True)))

    handle_expired_timer = ps.compiled(Sessions.handle_expired_timer)


def _times(last: Any, known: Any = None) -> pa.Array:
    return pa.array(last + GAP_MS + 1, mask=None if known is None else ~known)


PENSTOCK = {
    "processor": Sessions,
    "processor_compiled": CompiledSessions,
    "processor_vectorised": VectorisedSessions,
}


class _SparkSessions(StatefulProcessor):
    """For `transformWithState`, which hands over rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", _STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        yield from self._made(self._clicked(key, self._times(rows)))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        held = self._session.get()
        self._session.clear()
        yield from self._made([(key[0], *held)] if held is not None else [])

    def close(self) -> None:
        pass

    def _clicked(self, key: Any, times: Iterator[int]) -> list[tuple[Any, ...]]:
        held, ended = self._session.get(), []
        clicks, last = held if held is not None else (0, 0)
        if clicks > 0:
            self._handle.deleteTimer(last + GAP_MS + 1)
        for at in times:
            if clicks > 0 and at > last + GAP_MS:
                ended.append((key[0], clicks, last))
                clicks = 0
            clicks += 1
            last = at
        self._session.update((clicks, last))
        self._handle.registerTimer(last + GAP_MS + 1)
        return ended

    def _times(self, rows: Iterator[Any]) -> Iterator[int]:
        return (row["at"] for row in rows)

    def _made(self, rows: list[tuple[Any, ...]]) -> Iterator[Any]:
        return (Row(k=k, clicks=clicks, last=last) for k, clicks, last in rows)


class _PandasSessions(_SparkSessions):
    """For `transformWithStateInPandas`, which hands over DataFrames."""

    def _times(self, rows: Iterator[Any]) -> Iterator[int]:
        return (int(at) for part in rows for at in part["at"].tolist())

    def _made(self, rows: list[tuple[Any, ...]]) -> Iterator[Any]:
        if rows:
            yield pd.DataFrame(rows, columns=["k", "clicks", "last"])


def _group(key: Any, parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    ended = []
    if state.hasTimedOut:
        ended.append((key[0], *state.get))
        state.remove()
    else:
        clicks, last = state.get if state.exists else (0, 0)
        for part in parts:
            for at in part["at"].tolist():
                if clicks > 0 and at > last + GAP_MS:
                    ended.append((key[0], clicks, last))
                    clicks = 0
                clicks += 1
                last = at
        state.update((clicks, last))
        state.setTimeoutTimestamp(last + GAP_MS + 1)
    if ended:
        yield pd.DataFrame(ended, columns=["k", "clicks", "last"])


def _grouped(df: DataFrame) -> Any:
    return df.withWatermark("ts", "0 seconds").groupBy("k")


SPARK: dict[str, Callable[[DataFrame], DataFrame]] = {
    "transform_with_state_in_pandas": lambda df: _grouped(df).transformWithStateInPandas(
        _PandasSessions(), OUTPUT, "update", "EventTime"
    ),
    "transform_with_state": lambda df: _grouped(df).transformWithState(
        _SparkSessions(), OUTPUT, "update", "EventTime"
    ),
    "apply_in_pandas_with_state": lambda df: _grouped(df).applyInPandasWithState(
        _group, OUTPUT, _STATE, "update", GroupStateTimeout.EventTimeTimeout
    ),
}
"""Spark's APIs for state in Python."""
