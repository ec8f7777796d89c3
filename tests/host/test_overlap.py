"""Rounds on several cores: chunks of different couriers overlap, and the result is as on one core."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import StepError
from penstock.host.holdings import Holdings
from penstock.host.parted import PartedOperator
from penstock.host.rounds import Rounds, Worked
from penstock.operators.aggregate.aggregates import count
from penstock.operators.operator import ROWS, EpochTime, StepPlan
from penstock.operators.places import split_places, with_serial
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.assignment import Assignment, Incoming
from penstock.state.keys.codec import slots_of
from penstock.wire.live import Chunk, Frame, Time
from tests.host.live_rig import PLAN, SCHEMA

SLOTS, PARTS, COURIERS = 16, 4, 2
MEETING: dict[int, threading.Event] = {}
"""Value of a row -> event that is set while the row is processed."""
PATIENCE_S = 10.0


class Meets(KeyedProcessor):
    """A processor in which a row waits until the row with the negated value is processed, too."""

    output_schema = "k long, v long"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            if row.v == 0:
                raise ValueError("nothing")
            MEETING[row.v].set()
            if not MEETING[-row.v].wait(PATIENCE_S):
                raise TimeoutError("the other row is not processed")
            yield (row.k, row.v)


MEETS = ProcessPlan(SCHEMA, ["k"], Meets())


class Host:
    """A host of a live run with two couriers, on this many cores."""

    def __init__(self, plan: StepPlan, cores: int = 3, ordered: bool = True) -> None:
        self.plan, self.ordered = plan, ordered
        self.operator = PartedOperator(
            lambda: plan.operator(SLOTS, "step", "fail", ordered),
            PARTS,
            workers=cores,
            chunk_rows=5,
        )
        holdings, every = Holdings(self.operator), tuple(range(SLOTS))
        holdings.assign(Assignment(-1, every, (Incoming(every, None),)))
        self.rounds = Rounds(holdings, "step/0", 0, COURIERS, lambda: 0)
        self.numbers, self.serials = [0] * COURIERS, [0] * COURIERS

    def send(self, courier: int, batch: pa.RecordBatch) -> None:
        sender = self.plan.sender(EpochTime(0, 0))
        sender.combines = False
        for outgoing in sender.add(0, batch):
            sent = outgoing.batch
            if self.ordered:
                sent = with_serial(sent, self.serials[courier])
                self.serials[courier] += sent.num_rows
            self.numbers[courier] += 1
            self.rounds.receive(courier, Frame(chunk=Chunk(self.numbers[courier], ROWS)), sent)

    def end(self) -> None:
        self.operator.end()


@pytest.fixture
def meets() -> Iterator[Host]:
    MEETING.update({value: threading.Event() for value in (1, -1)})
    host = Host(MEETS)
    yield host
    host.end()
    MEETING.clear()


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch(list(map(pa.array, zip(*pairs, strict=True))), schema=SCHEMA)


def keys_of_two_parts() -> tuple[int, int]:
    keys = list(range(50))
    hashes = PLAN.codec.encode(pa.record_batch({"k": pa.array(keys, pa.int64())})).hashes
    parts = [int(slot) % PARTS for slot in slots_of(hashes, SLOTS)]
    return parts.index(0), parts.index(1)


def answers(outcome: Worked) -> list[tuple[int, dict[str, Any]]]:
    """Return (courier, row) of all output, without places."""
    output = []
    for sent in outcome.sent:
        if sent.rows is not None:
            batch = sent.rows
            if "__major" in batch.schema.names:
                (batch,), _ = split_places([batch])
            output += [(sent.courier, row) for row in batch.to_pylist()]
    return output


def test_chunks_of_two_couriers_overlap(meets: Host) -> None:
    """Each chunk can only go on while the other is processed. Each courier gets its own answer."""
    first, second = keys_of_two_parts()
    meets.send(0, rows((first, 1)))
    meets.send(1, rows((second, -1)))
    assert answers(meets.rounds.work()) == [(0, {"k": first, "v": 1}), (1, {"k": second, "v": -1})]


def test_a_chunk_that_arrives_during_a_round_joins_in(meets: Host) -> None:
    first, second = keys_of_two_parts()
    meets.send(0, rows((first, 1)))

    def arrives() -> None:
        if MEETING[1].wait(PATIENCE_S) and not meets.numbers[1]:
            meets.send(1, rows((second, -1)))

    meets.rounds.refill = arrives
    assert len(answers(meets.rounds.work())) == 2


def test_a_failure_ends_all_rounds_and_leaves_nothing_at_work(meets: Host) -> None:
    first, _ = keys_of_two_parts()
    MEETING[-1].set()
    meets.send(0, rows((first, 1)))
    meets.send(1, rows((first, 0)))
    with pytest.raises(StepError, match="nothing"):
        meets.rounds.work()
    assert not meets.operator.drain()
    meets.operator.rollback()
    assert not len(meets.operator.table)


def received(host: Host, frames: Sequence[tuple[int, Any]], pick: random.Random) -> list[Any]:
    """Send frames in random bunches, and return each courier's rows, sorted by place."""
    got: dict[int, list[Any]] = {n: [] for n in range(COURIERS)}
    waiting = list(frames)
    while waiting:
        for courier, frame in waiting[: pick.randint(1, 5)]:
            waiting.pop(0)
            if isinstance(frame, Time):
                host.rounds.receive(courier, Frame(time=frame))
            else:
                host.send(courier, frame)
        for sent in host.rounds.work().sent:
            if sent.rows is not None:
                got[sent.courier] += [tuple(row.values()) for row in sent.rows.to_pylist()]
    return [sorted(got[n], key=lambda row: (row[-2], row[-1])) for n in range(COURIERS)]


TIMED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
WINDOWS = WindowPlan(TIMED, ["k"], {"n": count()}, tumbling("10ms"), "at")


@pytest.mark.parametrize("seed", range(5))
def test_windows_are_as_on_one_core(seed: int) -> None:
    """Time advances between chunks. Which windows close, and their counts, do not depend on cores."""
    pick, frames = random.Random(seed), list[tuple[int, Any]]()
    for at in range(0, 400, 4):
        courier = pick.randrange(COURIERS)
        some = [(pick.randrange(20), at + pick.randrange(8)) for _ in range(6)]
        columns = [[k for k, _ in some], pa.array([t for _, t in some], pa.timestamp("ms"))]
        frames.append((courier, pa.record_batch(columns, schema=TIMED)))
        if pick.random() < 0.3:
            frames += [(n, Time(at)) for n in range(COURIERS)]
    frames += [(n, Time(1_000)) for n in range(COURIERS)]
    results = []
    for cores in (1, 3):
        host = Host(WINDOWS, cores)
        results.append(received(host, frames, random.Random(seed)))
        host.end()
    assert results[0] == results[1]
    assert sum(map(len, results[0])) > 100
