"""The host machine's protocol, with an operator that only counts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ProtocolError, StaleRunError
from penstock.host.machine import HostMachine
from penstock.operators.aggregate_step import AggregateOperator
from penstock.operators.aggregates import AggregatePlan, count, sum
from penstock.operators.operator import ROWS, EpochTime
from penstock.wire.messages import ChannelHeader

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PLAN = AggregatePlan(SCHEMA, ["k"], {"t": sum("v"), "n": count()})
ALL_SLOTS = np.arange(4, dtype=np.int32)


def machine() -> HostMachine:
    made = HostMachine(AggregateOperator(PLAN, 4, "step"))
    made.restore(-1, [], ALL_SLOTS)
    return made


def header(
    epoch: int, partition: int, attempt: int, run: int = 0, partitions: int = 2
) -> ChannelHeader:
    time = EpochTime(epoch, 0)
    return ChannelHeader(epoch, run, "step", partition, attempt, partitions, time)


def rows(*pairs: tuple[int, int]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], schema=SCHEMA)]


def told(batches: list[pa.RecordBatch]) -> dict[int, tuple[int, int]]:
    return {r["k"]: (r["t"], r["n"]) for b in batches for r in b.to_pylist()}


def sealed(host: HostMachine, epoch: int, run: int = 0) -> dict[int, bool]:
    delta, _ = host.seal(epoch, run, 2)
    return dict(zip(delta["__key"].to_pylist(), delta["__present"].to_pylist(), strict=True))


def test_updates_come_once_from_the_last_channel() -> None:
    host = machine()
    assert told(host.close_channel(header(0, 1, 10), ROWS, rows((1, 5), (2, 7))).batches) == {}
    assert told(host.close_channel(header(0, 0, 11), ROWS, rows((1, 1))).batches) == {
        1: (6, 2),
        2: (7, 1),
    }
    assert sealed(host, 0) == {1: True, 2: True}


def test_a_second_attempt_gets_the_kept_answer_and_changes_nothing() -> None:
    host = machine()
    host.close_channel(header(0, 0, 10), ROWS, rows((1, 5)))
    last = host.close_channel(header(0, 1, 11), ROWS, rows((1, 1)))
    assert told(host.close_channel(header(0, 1, 12), ROWS, rows((1, 1))).batches) == told(
        last.batches
    )
    assert host.close_channel(header(0, 0, 13), ROWS, rows((1, 5))).batches == []
    host.seal(0, 0, 2)
    assert told(host.close_channel(header(0, 1, 14), ROWS, rows((1, 1))).batches) == told(
        last.batches
    )
    answers = [host.close_channel(header(1, p, 20 + p), ROWS, rows((1, 0))).batches for p in (0, 1)]
    assert told(answers[1]) == {1: (6, 4)}


def test_the_same_attempt_twice_means_merged_partitions() -> None:
    host = machine()
    host.close_channel(header(0, 0, 10), ROWS, rows((1, 5)))
    with pytest.raises(ProtocolError, match="coalesce"):
        host.close_channel(header(0, 0, 10), ROWS, rows((2, 5)))


def test_a_new_run_starts_from_the_sealed_version() -> None:
    host = machine()
    for partition in (0, 1):
        host.close_channel(header(0, partition, partition), ROWS, rows((1, 1)))
    host.seal(0, 0, 2)
    host.close_channel(header(1, 0, 10), ROWS, rows((1, 100), (9, 9)))
    host.close_channel(header(1, 0, 12, run=1), ROWS, rows((1, 1)))
    answer = host.close_channel(header(1, 1, 13, run=1), ROWS, rows((1, 1)))
    assert told(answer.batches) == {1: (4, 4)}
    with pytest.raises(StaleRunError, match="given up"):
        host.close_channel(header(1, 1, 11, run=0), ROWS, rows((1, 100)))


def test_a_sealed_epoch_can_be_taken_back_until_the_next_opens() -> None:
    host = machine()
    for partition in (0, 1):
        host.close_channel(header(0, partition, partition), ROWS, rows((1, 1)))
    host.seal(0, 0, 2)
    host.rollback(-1)
    for partition in (0, 1):
        answer = host.close_channel(header(0, partition, 5 + partition, run=1), ROWS, rows((1, 2)))
    assert told(answer.batches) == {1: (4, 2)}
    host.seal(0, 1, 2)
    host.close_channel(header(1, 0, 9), ROWS, rows((1, 2)))
    with pytest.raises(ProtocolError, match="cannot return"):
        host.rollback(-1)


def test_what_is_out_of_order_is_refused() -> None:
    host = machine()
    with pytest.raises(StaleRunError, match="cannot open"):
        host.close_channel(header(3, 0, 1), ROWS, rows((1, 1)))
    host.close_channel(header(0, 0, 1), ROWS, rows((1, 1)))
    with pytest.raises(ProtocolError, match="1 of 2 partitions"):
        host.seal(0, 0, 2)
    with pytest.raises(StaleRunError, match="no open channel"):
        host.close_channel(header(0, 7, 1), ROWS, rows((1, 1)))
    with pytest.raises(ProtocolError, match="already holds"):
        host.restore(-1, [], ALL_SLOTS)
    unborn = HostMachine(AggregateOperator(PLAN, 4, "step"))
    with pytest.raises(ProtocolError, match="not been given its state"):
        unborn.close_channel(header(0, 0, 1), ROWS, rows((1, 1)))


def test_a_host_without_partitions_seals_nothing() -> None:
    host = machine()
    delta, vitals = host.seal(0, 0, 0)
    assert delta.num_rows == 0
    assert vitals.rows == 0
    for partition in (0, 1):
        answer = host.close_channel(header(1, partition, partition), ROWS, rows((1, 1)))
    assert told(answer.batches) == {1: (2, 2)}


def test_restore_keeps_only_its_slots() -> None:
    host = machine()
    for partition in (0, 1):
        host.close_channel(
            header(0, partition, partition), ROWS, rows(*((k, k) for k in range(20)))
        )
    delta, _ = host.seal(0, 0, 2)
    halves = []
    for slots in ([0, 1], [2, 3]):
        half = HostMachine(AggregateOperator(PLAN, 4, "step"))
        half.restore(0, [delta], np.array(slots, np.int32))
        halves.append(half)
        held = half.operator.table.export(half.operator.table.entries_in(ALL_SLOTS))
        assert set(held["__slot"].to_pylist()) <= set(slots)
    assert len(halves[0].operator.table) + len(halves[1].operator.table) == 20
