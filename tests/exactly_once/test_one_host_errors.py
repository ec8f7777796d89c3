"""Errors of user code in a chain: the query ends with the error, and no state has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import MemoryLimitError, NullKeyError, StepError
from penstock.operators.aggregate.aggregates import AggregatePlan, count, sum
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from tests.trials.cluster import cluster
from tests.trials.one_host_trial import ALONE, SMALL, THREE, OneHost
from tests.trials.plain_rows import Row, values

pytestmark = pytest.mark.timeout(60)

SOURCE = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SLOTS = 8
WORKERS = [
    pytest.param(SMALL, id="small"),
    pytest.param(ALONE, id="alone", marks=pytest.mark.slow),
    pytest.param(THREE, id="three", marks=pytest.mark.slow),
]
BAD = {"on": True}
"""Whether user code fails on the bad values."""


def _refuse(v: int, bad: int) -> None:
    if BAD["on"] and v == bad:
        raise ValueError(f"{bad} is bad")


def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    for v in batch.column("v").to_pylist():
        _refuse(v, 101)
    return batch


class Running(KeyedProcessor):
    """Emits the running total of each key."""

    output_schema = "k long, v long, total long"
    bad = 102

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.get_value_state("total", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (total,) = self.total.get() or (0,)
        for row in rows:
            _refuse(row.v, self.bad)
            total += row.v
            self.total.update((total,))
            yield (row.k, row.v, total)


class ByLast(Running):
    """Emits the running total of each last digit, with a timer for a few values."""

    output_schema = "digit long, v long, total long"
    bad = 103

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (total,) = self.total.get() or (0,)
        for row in rows:
            _refuse(row.v, self.bad)
            total += row.v
            self.total.update((total,))
            if row.v == 104:
                self.handle.register_timer(timers.processing_time_ms + 1)
            yield (key[0], row.v, total)

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        _refuse(104, 104)
        yield (key[0], -1, expired.expiry_ms)


class Last(Running):
    """A step that processes rows emitted at the end of the epoch."""

    output_schema = "digit long, n long, total long"
    bad = -1

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            _refuse(105 if row.total >= 1_000_000 else 0, 105)
            yield (row.digit, row.n, row.total)


def with_digit(batch: pa.RecordBatch) -> pa.RecordBatch:
    digits = pa.array([v % 10 for v in batch.column("v").to_pylist()], pa.int64())
    return batch.append_column(pa.field("digit", pa.int64()), digits)


_RUNNING = ProcessPlan(SOURCE, ["k"], Running())
_DIGITS = pa.schema([*_RUNNING.output, ("digit", pa.int64())])
_BY_LAST = ProcessPlan(_DIGITS, ["digit"], ByLast())
_SUMS = AggregatePlan(_BY_LAST.output, ["digit"], {"n": count(), "total": sum("v")})
_LAST = ProcessPlan(_SUMS.output, [], Last())
FLOW = FlowPlan(
    (SourcePlan(SOURCE),),
    (
        MapStep("map-1", mapped, SOURCE, SOURCE),
        KeyedStep("running", SLOTS, _RUNNING),
        MapStep("map-2", with_digit, _RUNNING.output, _DIGITS),
        KeyedStep("by-last", SLOTS, _BY_LAST),
        KeyedStep("sums", SLOTS, _SUMS),
        KeyedStep("last", 1, _LAST),
    ),
    one_host=True,
)


def setting_aside(flow: FlowPlan) -> FlowPlan:
    steps = tuple(
        replace(step, on_error="dead_letter") if isinstance(step, KeyedStep) else step
        for step in flow.steps
    )
    return replace(flow, steps=steps, on_error="dead_letter")


def parts(*bad: Row) -> list[list[Row]]:
    """Two partitions of good rows, with the rows `bad` in the middle of the second."""
    good = [[{"k": (p + n) % 5, "v": n} for n in range(20)] for p in range(2)]
    return [good[0], good[1][:10] + list(bad) + good[1][10:]]


def sums(*epochs: list[list[Row]]) -> list[tuple[int, int, int]]:
    """Expected output of the last of these epochs: digit, rows, total so far."""
    held: dict[int, tuple[int, int]] = {}
    for epoch in epochs:
        touched = set()
        for row in (row for part in epoch for row in part):
            digit = row["v"] % 10
            n, total = held.get(digit, (0, 0))
            held[digit] = (n + 1, total + row["v"])
            touched.add(digit)
    return sorted((digit, *held[digit]) for digit in touched)


FAILURES = {
    "a map": (101, "map-1", "ValueError: 101 is bad"),
    "the first step": (102, "running", "ValueError: 102 is bad"),
    "a later step": (103, "by-last", "ValueError: 103 is bad"),
    "behind the end of the epoch": (2_000_000, "last", "ValueError: 105 is bad"),
}


@pytest.fixture(autouse=True)
def _bad() -> Iterator[None]:
    BAD["on"] = True
    yield
    BAD["on"] = True


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("v", "step", "what"), FAILURES.values(), ids=FAILURES)
def test_an_error_ends_the_query(
    tmp_path: Path, workers: Any, v: int, step: str, what: str
) -> None:
    """The query ends with the error itself; the next start continues as if the epoch had not been tried."""
    on = OneHost(FLOW, str(tmp_path), settings=(workers,))
    try:
        on.run(parts())
        bad = parts({"k": 1, "v": v})
        with pytest.raises(StepError) as failure:
            on.run(bad)
        assert type(failure.value) is StepError
        assert failure.value.step == step
        assert what in str(failure.value)
        on.restart()
        BAD["on"] = False
        on.run(bad)
        assert sorted(map(values, on.sink[1])) == sums(parts(), bad)
        on.restart()
        on.run(parts())
        assert sorted(map(values, on.sink[2])) == sums(parts(), bad, parts())
    finally:
        on.close()


def test_an_error_of_a_timer_ends_the_query(tmp_path: Path) -> None:
    on = OneHost(FLOW, str(tmp_path), settings=(SMALL,))
    try:
        alarms = parts({"k": 1, "v": 104})
        on.run(alarms)
        on.now_ms += 10
        with pytest.raises(StepError, match="handle_expired_timer") as failure:
            on.run(parts())
        assert failure.value.step == "by-last"
        on.restart()
        BAD["on"] = False
        on.run(parts())
        # The timer of digit 4 adds a row of -1.
        output = {row[0]: row[1:] for row in map(values, on.sink[1])}
        n, total = {row[0]: row[1:] for row in sums(alarms, parts())}[4]
        assert output[4] == (n + 1, total - 1)
    finally:
        on.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_bad_rows_are_set_aside_once(tmp_path: Path, workers: Any) -> None:
    """Bad rows of a map, of a step and of a later step are set aside; all others count."""
    on = OneHost(setting_aside(FLOW), str(tmp_path), settings=(workers,))
    try:
        on.reads = 2
        bad = [{"k": 1, "v": 101}, {"k": 2, "v": 102}, {"k": 3, "v": 103}]
        progress = on.run(parts(*bad, {"k": None, "v": 5}))
        assert progress.dead_letters == 4
        assert sorted(map(values, on.sink[0])) == sums(parts())
        (letters,) = (file.read_text().splitlines() for file in tmp_path.glob("dead_letters/*"))
        assert len(letters) == 4
        on.run(parts())
        assert sorted(map(values, on.sink[1])) == sums(parts(), parts())
    finally:
        on.close()


def test_a_row_without_a_key_ends_the_query(tmp_path: Path) -> None:
    on = OneHost(FLOW, str(tmp_path), settings=(SMALL,))
    try:
        with pytest.raises(NullKeyError, match="running"):
            on.run(parts({"k": None, "v": 5}))
        on.restart()
        on.run(parts())
        assert sorted(map(values, on.sink[0])) == sums(parts())
    finally:
        on.close()


def test_a_task_that_is_tried_again_may_succeed(tmp_path: Path) -> None:
    """The error is not the row's fault: the second attempt finds the state unchanged."""
    calls = iter(range(100))

    class Moody(ByLast):
        def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
            yield from super().handle_input_rows(key, rows, timers)
            if next(calls) in (3, 7):
                raise OSError("the service is unreachable")

    moody = KeyedStep("by-last", SLOTS, ProcessPlan(_DIGITS, ["digit"], Moody()))
    flow = replace(FLOW, steps=(*FLOW.steps[:3], moody, *FLOW.steps[4:]))
    on = OneHost(flow, str(tmp_path), settings=(SMALL,))
    try:
        on.run(parts())
        assert sorted(map(values, on.sink[0])) == sums(parts())
        assert on.tasks.attempts in (3, 4), "both errors may hit the same attempt"
    finally:
        on.close()


def test_more_state_than_allowed_ends_the_query_and_changes_nothing(tmp_path: Path) -> None:
    counts = KeyedStep("counts", SLOTS, AggregatePlan(SOURCE, ["k"], {"n": count()}))
    flow = FlowPlan((SourcePlan(SOURCE),), (counts,), one_host=True)
    with cluster(flow, str(tmp_path), hosts=1, memory_limit=1 << 20) as on:
        on.run([[{"k": 1, "v": 1}]])
        before = on.epoch
        many = [{"k": k, "v": 1} for k in range(60_000)]
        with pytest.raises(MemoryLimitError, match=r"one host takes .* MB of the 1 MB"):
            on.run([many])
        assert on.epoch == before
