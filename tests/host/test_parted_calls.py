"""A step in parts: failures are undone in all parts, parts run in parallel, stages form a chain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import ProtocolError, StepError
from penstock.host.chunks import ChannelChunk, ForAllParts
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.host.residence import NeedKeys
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import ROWS, Answer, EpochTime
from penstock.operators.places import Places, in_order
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.plan.assignment import Assignment, Incoming
from penstock.runtime.runtime import Runtime
from penstock.state.keys.codec import slots_of
from penstock.state.table.parted import PartedTable
from penstock.wire.messages import ChannelHeader
from tests.runtime.serial import run_serially

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SLOTS = 16
COUNTS = AggregatePlan(SCHEMA, ["k"], {"n": ps.count(), "s": ps.sum("v")})


def rows(keys: Any, values: Any = 0) -> pa.RecordBatch:
    keys = np.asarray(keys, np.int64)
    values = np.broadcast_to(np.asarray(values, np.int64), keys.shape)
    return pa.record_batch({"k": keys, "v": values})


def in_parts(plan: Any, parts: int = 4, workers: int = 2, chunk_rows: int = 5) -> PartedOperator:
    def make() -> Any:
        return plan.operator(SLOTS, "step", "fail")

    return PartedOperator(make, parts, workers=workers, chunk_rows=chunk_rows)


def output(*answers: Answer) -> list[tuple[Any, ...]]:
    """Return the rows of all answers, sorted."""
    return sorted(tuple(row.values()) for a in answers for b in a.batches for row in b.to_pylist())


class Fussy(KeyedProcessor):
    """A processor that counts rows. It fails on a negative value, and on a timer while `fails` is set."""

    output_schema = "k long, n long"
    fails: ClassVar[bool] = False
    closed: ClassVar[list[int]] = []

    def init(self, handle: Any) -> None:
        self.handle, self.n = handle, handle.get_value_state("n", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            (n,) = self.n.get() or (0,)
            self.n.update((n + 1,))
            self.handle.register_timer(timers.processing_time_ms + 10)
            if row.v < 0:
                raise ValueError("negative")
            yield key[0], n + 1

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        if Fussy.fails and key[0] == 7:
            raise ValueError("seven")
        yield key[0], -1

    def close(self) -> None:
        Fussy.closed.append(1)
        raise OSError("cannot close")


@pytest.fixture(autouse=True)
def _calm() -> None:
    Fussy.fails, Fussy.closed = False, []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_channel_is_applied_in_all_parts_or_in_none(workers: int) -> None:
    step = in_parts(ProcessPlan(SCHEMA, ["k"], Fussy()), workers=workers)
    step.open(EpochTime(0, 0))
    before = output(step.apply(ROWS, [rows(range(20))]))
    assert before == [(k, 1) for k in range(20)]
    delta = sorted(map(repr, step.table.delta().to_pylist()))
    bad = rows(range(20), np.where(np.arange(20) == 13, -1, 0))
    for _ in range(3):
        with pytest.raises(StepError, match="negative"):
            step.apply(ROWS, [rows(range(20)), bad])
        assert sorted(map(repr, step.table.delta().to_pylist())) == delta
    assert output(step.apply(ROWS, [rows(range(20))])) == [(k, 2) for k in range(20)]


def test_an_epoch_opens_in_all_parts_or_in_none() -> None:
    step = in_parts(ProcessPlan(SCHEMA, ["k"], Fussy()))
    step.open(EpochTime(0, 0))
    step.apply(ROWS, [rows(range(20))])
    step.close()
    step.table.seal()
    Fussy.fails = True
    with pytest.raises(StepError, match="seven"):
        step.open(EpochTime(1, 10))
    assert step.table.sealed
    Fussy.fails = False
    assert output(step.open(EpochTime(1, 10))) == [(k, -1) for k in range(20)]


def test_every_part_is_shut_down() -> None:
    step = in_parts(ProcessPlan(SCHEMA, ["k"], Fussy()))
    with pytest.raises(OSError, match="cannot close"):
        step.shutdown()
    assert len(Fussy.closed) == 4


def test_a_failed_channel_leaves_no_pieces_behind() -> None:
    plan = DistinctPlan(SCHEMA, ["k"])
    step = in_parts(plan, chunk_rows=2)
    step.open(EpochTime(0, 0))
    broken = pa.record_batch({"other": [1, 2]})
    with pytest.raises(KeyError):
        step.apply(ROWS, [rows(range(9)), broken])
    assert output(step.apply(ROWS, [rows([30])])) == [(30, 0)]
    assert len(step.table) == 1


def test_refuses_what_the_step_cannot_take() -> None:
    step = in_parts(DistinctPlan(SCHEMA, ["k"]))
    step.open(EpochTime(0, 0))
    for batches in ([], [rows([]), rows([])], [rows([1, 2, 3, 4])]):
        with pytest.raises(ProtocolError, match="of the kind 'partials'"):
            step.apply("partials", batches)
    assert step.apply(ROWS, []) == Answer()


def test_takes_batches_of_both_sides() -> None:
    """Couriers of a live run mix batches of both sides."""
    sides = pa.schema([("k", pa.int64())]), pa.schema([("k", pa.int64()), ("b", pa.int64())])
    plan = JoinPlan(*sides, (("k", "k"),), "inner", Regular())
    step = in_parts(plan)
    step.open(EpochTime(0, 0))
    left = plan.tagged.pack(0, pa.record_batch({"k": [1, 2]}))
    right = plan.tagged.pack(1, pa.record_batch({"k": [2, 3], "b": [20, 30]}))
    assert output(step.apply(ROWS, [pa.concat_batches([right, left])])) == [(2, 20)]
    assert output(step.apply(ROWS, [left, right])) == [(2, 20)] * 3


class Watched:
    """An operator that records the number of rows in each call."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[int] = []

    def apply(self, kind: str, batches: list[pa.RecordBatch], places: Places | None) -> Answer:
        self.calls.append(sum(batch.num_rows for batch in batches))
        answer: Answer = self._inner.apply(kind, batches, places)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("divisible", [True, False])
def test_calls_have_many_rows_or_all_rows_of_a_part(divisible: bool) -> None:
    plan: Any = DistinctPlan(SCHEMA, ["k"]) if divisible else ProcessPlan(SCHEMA, ["k"], Fussy())
    made: list[Watched] = []

    def make() -> Any:
        made.append(Watched(plan.operator(SLOTS, "step", "fail", True)))
        return made[-1]

    step = PartedOperator(make, 3, workers=2, chunk_rows=2)
    step.open(EpochTime(0, 0))
    batches = [rows(np.arange(50) + 50 * n) for n in range(8)]
    answer = step.apply(ROWS, batches, Places.of_records(0, np.arange(400)))
    ordered = pa.concat_batches(in_order(answer.batches, answer.places))
    assert ordered["k"].to_pylist() == list(range(400))
    calls = [part.calls for part in made]
    assert sum(map(sum, calls)) == 400
    if divisible:
        assert all(len(some) > 1 and min(some[:-1]) >= 16 for some in calls)
    else:
        assert all(len(some) == 1 for some in calls)


class Meeting(KeyedProcessor):
    """A processor that goes on only while calls of two parts are running."""

    output_schema = "k long"
    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        Meeting.barrier.wait(20)
        return batch.select(["k"])


def test_parts_run_in_parallel() -> None:
    plan = ProcessPlan(SCHEMA, ["k"], Meeting())
    step = in_parts(plan, parts=2, workers=2)
    # One key of each part, so that each part gets one call.
    wanted = [next(k for k in range(100) if _slot(k) % 2 == part) for part in range(2)]
    step.open(EpochTime(0, 0))
    assert output(step.apply(ROWS, [rows(wanted)])) == sorted((key,) for key in wanted)
    step.shutdown()


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_stages_of_a_chain(parts: int, workers: int) -> None:
    """Two steps with different keys have the same output in a runtime and in a serial run."""
    random = np.random.default_rng(5)
    chunks = [rows(random.integers(0, 30, 11), random.integers(0, 5, 11)) for _ in range(12)]
    first = DistinctPlan(SCHEMA, ["k", "v"])
    second = DistinctPlan(SCHEMA, ["v"])

    def chain() -> list[Any]:
        steps = in_parts(first, parts), in_parts(second, parts)
        for step in steps:
            step.open(EpochTime(0, 0))
        return [*steps[0].stages(), _Between(), *steps[1].stages()]

    items = [ChannelChunk(ROWS, [batch]) for batch in chunks]
    wanted = run_serially(chain(), items)
    runtime = Runtime(chain(), workers=workers)
    got = runtime.run(items)
    runtime.close()
    assert [output(answer) for answer in got] == [output(answer) for answer in wanted]
    assert sorted(v for _, v in output(*got)) == [0, 1, 2, 3, 4]


class _Between:
    """A stage that turns answers of one step into chunks for the next."""

    name, kind, parts = "between", "stateless", 1

    def work(self, part: int, piece: Answer) -> ChannelChunk:
        return ChannelChunk(ROWS, piece.batches)

    def split(self, item: Any) -> Any:
        return [(0, item)]

    def join(self, item: Any, results: list[Any]) -> Any:
        return results

    def size(self, item: Any) -> int:
        return 1

    def mark(self, mark: Any) -> Any:
        return ()


@pytest.mark.parametrize("parts", [1, 3])
def test_an_epoch_in_a_stream_of_work(parts: int) -> None:
    step = in_parts(COUNTS, parts)
    opening = ForAllParts(lambda part: part.open(EpochTime(0, 0)))
    closing = ForAllParts(lambda part: part.close())
    work = [opening, ChannelChunk(ROWS, [rows([1, 2, 1])]), ChannelChunk(ROWS, []), closing]
    assert output(*run_serially(step.stages(), work)) == [(1, 2, 0), (2, 1, 0)]


def test_chunks() -> None:
    batches = [rows(range(4)), rows([]), rows(range(4, 5)), rows(range(5, 14))]
    places = Places.of_records(2, np.arange(14) * 10)
    whole = ChannelChunk(ROWS, batches, places)
    for size in (1, 3, 5, 14, 20):
        chunks = list(whole.cut(size))
        assert [chunk.rows for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
        keys = [k for chunk in chunks for k in chunk.together().batches[0]["k"].to_pylist()]
        assert keys == list(range(14))
        assert Places.joined([c.places for c in chunks if c.places]).minor.tolist() == list(
            range(0, 140, 10)
        )
    assert list(ChannelChunk(ROWS, [rows([])]).cut(3)) == []


def test_a_host_does_not_see_the_parts() -> None:
    """Slots move from a host in three parts to one in five, and missing keys are fetched."""
    first, second = (HostMachine(in_parts(COUNTS, parts)) for parts in (3, 5))
    every = tuple(range(SLOTS))
    first.assign(Assignment(-1, every))
    assert isinstance(first.operator.table, PartedTable)
    sent = [rows(range(40))]
    for epoch in range(2):
        first.close_channel(_header(epoch), ROWS, sent)
        delta, vitals = first.seal(epoch, 0, 1)
        assert (delta.num_rows, vitals.entries, vitals.rows) == (40, 40, 40)
    first.assign(Assignment(1, every[:4]))
    second.assign(Assignment(1, every[4:], (Incoming(every[4:], "first"),)))
    keys = COUNTS.codec.encode(rows(range(40)))
    theirs = [rows([k]) for k in range(40) if _slot(k) >= 4]
    need = second.needs(_header(2), ROWS, theirs)
    assert isinstance(need, NeedKeys)
    for _, missing in need.parts:
        entries, unknown = first.copies.of_keys(missing, 1)
        assert not len(unknown)
        assert second.install(need, missing, entries)
    assert second.needs(_header(2), ROWS, theirs) is None
    answer = second.close_channel(_header(2), ROWS, theirs)
    assert output(answer) == [(k, 3, 0) for k in range(40) if _slot(k) >= 4]
    assert len(first.operator.table.find(keys)) == 40


def _slot(key: int) -> int:
    return int(slots_of(COUNTS.codec.encode(rows([key])).hashes, SLOTS)[0])


def _header(epoch: int) -> ChannelHeader:
    return ChannelHeader(epoch, 0, "step", 0, epoch, 1, EpochTime(epoch, 0))
