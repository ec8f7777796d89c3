"""Long chains for one host: processors with timers, distinct, global steps, windows, sessions, tops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.operators.aggregate import aggregates
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import session_window, tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from tests.trials.event_ledger import DELAY_MS
from tests.trials.plain_rows import Row

VISITS = pa.schema(
    [("user", pa.int64()), ("page", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us"))]
)


class Visits(KeyedProcessor):
    """Numbers a user's visits, with timers of both kinds."""

    output_schema = "user long, page long, n long, ts timestamp_ntz"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.get_value_state("seen", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (seen,) = self.seen.get() or (0,)
        for row in rows:
            seen += 1
            if row.n % 5 == 0:
                self.handle.register_timer(timers.processing_time_ms + 300 * (1 + row.n % 7))
            if row.n % 7 == 0:
                self.handle.register_timer(int(row.n) * 40 - 3_000, time="event")
            for _ in range(seen % 3):
                yield (row.user, (row.page + seen) % 5, 10 * row.n + seen % 10, row.ts)
        self.seen.update((seen,))

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield (key[0], expired.expiry_ms % 5, -expired.expiry_ms, None)


class Ranks(KeyedProcessor):
    """A global step over all pages."""

    output_schema = "page long, n long, ts timestamp_ntz, hash long"

    def init(self, handle: Any) -> None:
        self.hash = handle.get_value_state("hash", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (hash,) = self.hash.get() or (0,)
        for row in rows:
            hash = (hash * 31 + row.n) % 1_000_003
            yield (row.page, row.n, row.ts, hash)
        self.hash.update((hash,))


def timely(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a time: rows of timers have none, and windows reject them."""
    return batch.filter(batch.column("ts").is_valid())


def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([n % 2 == 1 for n in batch.column("n").to_pylist()]))


_VISITS = ProcessPlan(VISITS, ["user"], Visits())
_ONCE = DistinctPlan(_VISITS.output, ["page", "n"])
_RANKS = ProcessPlan(_ONCE.output, [], Ranks())
_COUNTS: dict[str, Any] = {"n": aggregates.count(), "most": aggregates.max("hash")}
_SESSIONS = WindowPlan(
    _VISITS.output, ["page"], {"n": aggregates.count()}, session_window("300ms"), "ts"
)
_WINDOWS = WindowPlan(_RANKS.output, ["page"], _COUNTS, tumbling("1s"), "ts")
_TOP = TopPlan(_WINDOWS.output, ["window_end"], 2, "n desc", until="window_end")


def _flow(*steps: Any) -> FlowPlan:
    return FlowPlan((SourcePlan(VISITS, "ts", DELAY_MS),), steps)


LONG = {
    "process, distinct, global": _flow(
        KeyedStep("visits", 8, _VISITS),
        KeyedStep("once", 8, _ONCE),
        MapStep("map-1", odd, _ONCE.output, _ONCE.output),
        KeyedStep("ranks", 1, _RANKS),
    ),
    "process, global, windows, top": _flow(
        MapStep("map-1", odd, VISITS, VISITS),
        KeyedStep("visits", 8, _VISITS),
        MapStep("map-2", timely, _VISITS.output, _VISITS.output),
        KeyedStep("once", 8, _ONCE),
        KeyedStep("ranks", 1, _RANKS),
        KeyedStep("windows", 8, _WINDOWS),
        KeyedStep("top", 8, _TOP),
    ),
    "process, sessions": _flow(
        KeyedStep("visits", 8, _VISITS),
        MapStep("map-1", timely, _VISITS.output, _VISITS.output),
        KeyedStep("sessions", 8, _SESSIONS),
    ),
}


def visits(epoch: int, rows: int = 60) -> list[Row]:
    pick = random.Random(epoch)
    return [
        {
            "user": pick.randrange(7),
            "page": pick.randrange(4),
            "n": pick.randrange(200),
            "ts": 1000 * epoch - pick.randrange(DELAY_MS * 2),
        }
        for _ in range(rows)
    ]
