"""The host machine's protocol, with an operator that only counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ChangedInputError, ProtocolError, StaleRunError
from penstock.host.machine import HostMachine
from penstock.host.residence import NeedKeys, NeedSlots, Residence
from penstock.operators.aggregate.aggregates import AggregatePlan, count, sum
from penstock.operators.aggregate.step import AggregateOperator
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.assignment import Assignment, Incoming
from penstock.state.keys.codec import int_keys, slots_of
from penstock.wire.messages import ChannelHeader

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PLAN = AggregatePlan(SCHEMA, ["k"], {"t": sum("v"), "n": count()})


def machine() -> HostMachine:
    made = HostMachine(AggregateOperator(PLAN, 4, "step"))
    made.assign(Assignment(-1, (0, 1, 2, 3)))
    return made


def header(
    epoch: int, partition: int, attempt: int, run: int = 0, partitions: int = 2
) -> ChannelHeader:
    time = EpochTime(epoch, 0)
    return ChannelHeader(epoch, run, "step", partition, attempt, partitions, time)


def rows(*pairs: tuple[int, int]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], schema=SCHEMA)]


def totals(batches: list[pa.RecordBatch]) -> dict[int, tuple[int, int]]:
    """Return key -> (sum, count)."""
    return {r["k"]: (r["t"], r["n"]) for b in batches for r in b.to_pylist()}


def sealed(host: HostMachine, epoch: int, run: int = 0) -> dict[int, bool]:
    delta, _ = host.seal(epoch, run, 2)
    return dict(zip(delta["__key"].to_pylist(), delta["__present"].to_pylist(), strict=True))


def test_updates_come_once_from_the_last_channel() -> None:
    host = machine()
    assert totals(host.close_channel(header(0, 1, 10), ROWS, rows((1, 5), (2, 7))).batches) == {}
    assert totals(host.close_channel(header(0, 0, 11), ROWS, rows((1, 1))).batches) == {
        1: (6, 2),
        2: (7, 1),
    }
    assert sealed(host, 0) == {1: True, 2: True}


def test_a_second_attempt_gets_the_kept_answer_and_changes_nothing() -> None:
    host = machine()
    host.close_channel(header(0, 0, 10), ROWS, rows((1, 5)))
    last = host.close_channel(header(0, 1, 11), ROWS, rows((1, 1)))
    assert totals(host.close_channel(header(0, 1, 12), ROWS, rows((1, 1))).batches) == totals(
        last.batches
    )
    assert host.close_channel(header(0, 0, 13), ROWS, rows((1, 5))).batches == []
    host.seal(0, 0, 2)
    assert totals(host.close_channel(header(0, 1, 14), ROWS, rows((1, 1))).batches) == totals(
        last.batches
    )
    answers = [host.close_channel(header(1, p, 20 + p), ROWS, rows((1, 0))).batches for p in (0, 1)]
    assert totals(answers[1]) == {1: (6, 4)}


def test_a_kept_answer_is_for_one_number_of_rows() -> None:
    """Another input is refused until the run is given up. Then all of it counts."""
    host = machine()
    host.close_channel(replace(header(0, 0, 10), rows=1), ROWS, rows((1, 5)))
    longer = replace(header(0, 0, 11), rows=2)
    with pytest.raises(ChangedInputError, match="had 1 rows, and 2 when its task was tried again"):
        host.close_channel(longer, ROWS, rows((1, 5), (2, 6)))
    assert host.close_channel(replace(longer, rows=1), ROWS, []).batches == []
    host.rollback(-1, 0)
    host.close_channel(replace(longer, run=1), ROWS, rows((1, 5), (2, 6)))
    last = host.close_channel(header(0, 1, 12, run=1), ROWS, [])
    assert totals(last.batches) == {1: (5, 1), 2: (6, 1)}


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
    assert totals(answer.batches) == {1: (4, 4)}
    with pytest.raises(StaleRunError, match="given up"):
        host.close_channel(header(1, 1, 11, run=0), ROWS, rows((1, 100)))


def test_a_sealed_epoch_can_be_rolled_back_until_the_next_opens() -> None:
    host = machine()
    for partition in (0, 1):
        host.close_channel(header(0, partition, partition), ROWS, rows((1, 1)))
    host.seal(0, 0, 2)
    host.rollback(-1)
    for partition in (0, 1):
        answer = host.close_channel(header(0, partition, 5 + partition, run=1), ROWS, rows((1, 2)))
    assert totals(answer.batches) == {1: (4, 2)}
    host.seal(0, 1, 2)
    host.close_channel(header(1, 0, 9), ROWS, rows((1, 2)))
    with pytest.raises(ProtocolError, match="cannot roll back"):
        host.rollback(-1)


def test_calls_out_of_order_are_refused() -> None:
    host = machine()
    with pytest.raises(StaleRunError, match="cannot open"):
        host.close_channel(header(3, 0, 1), ROWS, rows((1, 1)))
    host.close_channel(header(0, 0, 1), ROWS, rows((1, 1)))
    with pytest.raises(ProtocolError, match="1 of 2 partitions"):
        host.seal(0, 0, 2)
    with pytest.raises(StaleRunError, match="no open channel"):
        host.close_channel(header(0, 7, 1), ROWS, rows((1, 1)))
    with pytest.raises(ProtocolError, match="cannot be reassigned"):
        host.assign(Assignment(-1, (0, 1)))
    new = HostMachine(AggregateOperator(PLAN, 4, "step"))
    with pytest.raises(ProtocolError, match="no slots assigned yet"):
        new.close_channel(header(0, 0, 1), ROWS, rows((1, 1)))


def test_a_host_without_partitions_seals_nothing() -> None:
    host = machine()
    delta, vitals = host.seal(0, 0, 0)
    assert delta.num_rows == 0
    assert vitals.rows == 0
    for partition in (0, 1):
        answer = host.close_channel(header(1, partition, partition), ROWS, rows((1, 1)))
    assert totals(answer.batches) == {1: (2, 2)}
    host.seal(1, 0, 2)
    assert host.seal(2, 0, 0)[0].num_rows == 0


def test_a_run_that_was_given_up_does_not_open_again() -> None:
    """A channel of it may still have been waiting for state when the driver gave it up."""
    host = machine()
    host.close_channel(header(0, 0, 1), ROWS, rows((1, 1)))
    host.rollback(-1, run=0)
    with pytest.raises(StaleRunError, match="given up"):
        host.needs(header(0, 1, 2), ROWS, rows((1, 1)))
    host.assign(Assignment(-1, (0, 1)))
    host.close_channel(header(0, 0, 3, run=1), ROWS, rows((1, 1)))


class Pair:
    """Two hosts, and a store with what they have sealed. Missing state is fetched from its source."""

    def __init__(self) -> None:
        self.hosts = [HostMachine(AggregateOperator(PLAN, 4, "step")) for _ in range(2)]
        self.stored: dict[int, pa.Table] = {}
        self.asked: list[tuple[str | None, int]] = []
        self.epoch = 0
        self.assign(-1, (0, 1), (2, 3))

    def assign(self, version: int, *owned: tuple[int, ...], **options: Any) -> None:
        """Assign slots as the driver does: first freeze those that leave, then let others take them."""
        before = [set(np.flatnonzero(h.residence.owned).tolist()) for h in self.hosts]
        for host, slots, had in zip(self.hosts, owned, before, strict=True):
            host.assign(Assignment(version, tuple(sorted(had & set(slots)))))
        for n, host in enumerate(self.hosts):
            comes = tuple(sorted(set(owned[n]) - before[n]))
            incoming = (Incoming(comes, f"host {1 - n}"),) if comes else ()
            host.assign(Assignment(version, owned[n], incoming, **options))

    def feed(self, *pairs: tuple[int, int]) -> dict[int, tuple[int, int]]:
        """Run one epoch, and return the updates."""
        updates: dict[int, tuple[int, int]] = {}
        for host in self.hosts:
            mine = [(k, v) for k, v in pairs if host.residence.owned[slot(k)]]
            head = header(self.epoch, 0, 1, partitions=1)
            while (need := host.needs(head, ROWS, rows(*mine))) is not None:
                assert isinstance(need, NeedKeys)
                self.bring(host, need)
            updates |= totals(host.close_channel(head, ROWS, rows(*mine)).batches)
        for host in self.hosts:
            for row in host.seal(self.epoch, 0, 1)[0].to_batches():
                for n, key in enumerate(row["__key"].to_pylist()):
                    self.stored[key] = pa.Table.from_batches([row.slice(n, 1)])
        self.epoch += 1
        return updates

    def bring(self, host: HostMachine, need: NeedKeys) -> None:
        for source, keys in need.parts:
            self.asked.append((source.location if source else None, len(keys)))
            tables, unknown = [], np.arange(len(keys))
            if source is not None:
                other = self.hosts[int(source.location[-1])]
                copied, unknown = other.copies.of_keys(keys, source.version)
                tables.append(copied)
            assert keys.ints is not None
            there = [k for k in keys.ints[unknown].tolist() if k in self.stored]
            tables += [self.stored[k] for k in there if self.stored[k]["__present"][0].as_py()]
            schema = host.operator.table.schema
            table = pa.concat_tables(tables) if tables else schema.empty_table()
            assert host.install(need, keys, table)


def slot(key: int) -> int:
    return int(slots_of(int_keys(np.array([key])).hashes, 4)[0])


KEYS = range(40)


def test_a_moved_slot_is_fetched_key_by_key() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    moved = [k for k in KEYS if slot(k) == 1]
    assert pair.feed((moved[0], 1), (moved[0], 1)) == {moved[0]: (moved[0] + 2, 3)}
    assert pair.asked == [("host 0", 1)]
    assert pair.feed((moved[0], 1)) == {moved[0]: (moved[0] + 3, 4)}
    assert pair.asked == [("host 0", 1)], "a key is fetched only once"
    new = next(k for k in range(100, 200) if slot(k) == 1)
    assert pair.feed((new, 1), (moved[1], 1)) == {new: (1, 1), moved[1]: (moved[1] + 1, 2)}
    assert pair.hosts[0].copies.left_behind == len(moved) - 2


def test_a_slot_that_comes_back_has_all_changes() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    a, b = [k for k in KEYS if slot(k) == 1][:2]
    pair.feed((a, 1))
    pair.assign(1, (0, 1), (2, 3))
    assert pair.feed((a, 1), (b, 1)) == {a: (a + 2, 3), b: (b + 1, 2)}


def test_a_slot_that_comes_back_at_once_needs_nothing() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    pair.assign(0, (0, 1), (2, 3))
    assert not pair.hosts[0].residence.any_partial
    a = next(k for k in KEYS if slot(k) == 1)
    assert pair.feed((a, 1)) == {a: (a + 1, 2)}
    assert not pair.asked


def test_a_rollback_undoes_changes_of_fetched_entries() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    a = next(k for k in KEYS if slot(k) == 1)
    pair.feed((a, 5))
    for host in pair.hosts:
        host.rollback(0)
    pair.epoch = 1
    assert pair.feed((a, 1)) == {a: (a + 1, 2)}


def test_an_answer_that_comes_after_a_rollback_is_not_used() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    host = pair.hosts[1]
    a = next(k for k in KEYS if slot(k) == 1)
    need = host.needs(header(1, 0, 1, partitions=1), ROWS, rows((a, 1)))
    assert isinstance(need, NeedKeys)
    host.rollback(0)
    empty = host.operator.table.schema.empty_table()
    assert not host.install(need, need.parts[0][1], empty)


def test_beyond_the_memory_limit_entries_are_read_again() -> None:
    pair = Pair()
    pair.hosts[0] = HostMachine(AggregateOperator(PLAN, 4, "step"), memory_limit=1)
    pair.hosts[0].assign(Assignment(-1, (0, 1)))
    pair.feed(*((k, k) for k in KEYS))
    first = {k: (2 * k, 2) for k in KEYS}
    assert pair.feed(*((k, k) for k in KEYS)) == first
    assert [source for source, _ in pair.asked] == [None]
    assert pair.feed(*((k, 0) for k in KEYS)) == {k: (t, 3) for k, (t, _) in first.items()}


def test_a_removed_key_does_not_come_back_from_a_copy() -> None:
    """The table forgets removed keys when there are too many of them. Then only the store knows."""
    residence = Residence(4)
    residence.assign(Assignment(7, (1,), (Incoming((1,), "host 0"),)))
    assert residence.source(1) is not None
    residence.forgot_absent(9)
    assert residence.source(1) is None
    assert residence.store_version == 9


def test_rows_wait_for_whole_slots() -> None:
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3), whole=True)
    host, other = pair.hosts[1], pair.hosts[0]
    a = next(k for k in KEYS if slot(k) == 1)
    head = header(1, 0, 1, partitions=1)
    assert host.needs(head, ROWS, rows((a, 1))) == NeedSlots((1,))
    wanted = host.wanted()
    assert wanted is not None
    assert wanted.slot == 1
    assert wanted.source is not None
    table = other.operator.table.export(other.copies.of_slot(1, wanted.source.version))
    keys = host.operator.table.codec.from_storage(table["__key"])
    assert host.install(wanted, keys, table)
    host.complete_slot(wanted)
    assert host.needs(head, ROWS, rows((a, 1))) is None
    assert host.wanted() is None
    host.rollback(0)
    assert host.residence.partial[1], "the entries are gone, so the slot is not complete"


def test_a_host_tells_when_it_applied_each_channel() -> None:
    seconds = iter((10.0, 10.25))
    host = HostMachine(AggregateOperator(PLAN, 4, "step"), wall_s=lambda: next(seconds))
    host.assign(Assignment(-1, (0, 1, 2, 3)))
    host.close_channel(header(0, 1, 10), ROWS, rows((1, 5)))
    host.close_channel(header(0, 0, 11), ROWS, rows((1, 1)))
    assert host.seal(0, 0, 2)[1].closed_ms == {1: 10_000.0, 0: 10_250.0}


def test_a_channel_waits_for_those_of_lower_tasks() -> None:
    host = machine()
    first, second = (replace(header(0, p, 10 + p), task=p) for p in (0, 1))
    assert (host.ahead_of(first), host.ahead_of(second)) == (None, 0)
    host.close_channel(first, ROWS, rows((1, 1)))
    assert (host.ahead_of(first), host.ahead_of(second)) == (None, None)
    host.rollback(-1, 0)
    with pytest.raises(StaleRunError):
        host.ahead_of(second)
    # A task's second channel waits for the second ones of lower tasks only.
    [other] = [replace(header(0, 3, 20, run=1, partitions=4), task=1)]
    assert host.ahead_of(other) == 2
