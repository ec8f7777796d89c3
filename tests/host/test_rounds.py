"""A live run on a host, without threads: rounds, messages to couriers, and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ProtocolError
from penstock.host.held_rows import HeldRows
from penstock.host.holdings import Holdings
from penstock.host.residence import NeedDue, NeedKeys
from penstock.host.rounds import Rounds, Worked
from penstock.host.run_time import FIRE_EVERY_MS
from penstock.operators.aggregate.aggregates import count
from penstock.operators.operator import ROWS, EpochTime, StepPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import session_window, tumbling
from penstock.plan.assignment import Assignment, Incoming
from penstock.state.keys.codec import Keys, slots_of
from penstock.wire.live import (
    CheckpointMessage,
    Chunk,
    Frame,
    Handing,
    Message,
    Reroute,
    Time,
    output_courier,
)
from tests.host.live_rig import PLAN, SCHEMA, slots

SLOTS = 4
TIMED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms"))])
HOST = "step/0"


class Run:
    """One host of a run with two couriers."""

    def __init__(self, plan: StepPlan, version: int = -1, source: str | None = None) -> None:
        self.plan, self.now_ms = plan, 0
        self.holdings = Holdings(plan.operator(SLOTS, "step", "fail"))
        every = tuple(range(SLOTS))
        self.holdings.assign(Assignment(version, every, (Incoming(every, source),)))
        self.rounds = Rounds(self.holdings, HOST, 0, 2, lambda: self.now_ms, lambda: 0.0)
        self.number = 0

    def rows(self, courier: int, batch: pa.RecordBatch, now_ms: int = 0) -> None:
        sender = self.plan.sender(EpochTime(0, now_ms))
        sender.combines = False
        sent = list(sender.add(0, batch))
        kind, rest = sender.finish()
        for outgoing in (*sent, *rest):
            self.number += 1
            self.rounds.receive(courier, Frame(chunk=Chunk(self.number, kind)), outgoing.batch)

    def sums(self, courier: int, *pairs: tuple[int, int]) -> None:
        self.rows(
            courier, pa.record_batch(list(map(pa.array, zip(*pairs, strict=True))), schema=SCHEMA)
        )

    def events(self, courier: int, *pairs: tuple[int, int]) -> None:
        keys, times = zip(*pairs, strict=True)
        columns = [pa.array(keys), pa.array(times, pa.timestamp("ms"))]
        self.rows(courier, pa.record_batch(columns, schema=TIMED))

    def time(self, courier: int, *args: Any, **options: Any) -> None:
        self.rounds.receive(courier, Frame(time=Time(*args, **options)))

    def tell(self, message: Message, *couriers: int) -> None:
        for courier in couriers or (0, 1):
            self.rounds.receive(courier, Frame(message=message))

    def work(self) -> Worked:
        return self.rounds.work()


def output(outcome: Worked) -> list[dict[str, Any]]:
    """Return all output rows."""
    return [row for sent in outcome.sent if sent.rows is not None for row in sent.rows.to_pylist()]


def facts(outcome: Worked, courier: int, fact: str) -> list[Any]:
    """Return all values of a field of `Back` that a courier was sent."""
    backs = [
        sent.back for sent in outcome.sent if sent.courier == courier and sent.back is not None
    ]
    return [value for back in backs if (value := getattr(back, fact)) not in (None, False, ())]


def test_all_queued_rows_are_one_round() -> None:
    run = Run(PLAN)
    run.sums(0, (1, 1), (2, 1))
    run.sums(1, (1, 10))
    run.sums(0, (1, 100))
    outcome = run.work()
    assert output(outcome) == [{"k": 1, "t": 111, "n": 3}, {"k": 2, "t": 1, "n": 1}]
    assert {sent.courier for sent in outcome.sent if sent.rows is not None} == {
        output_courier(HOST, 2)
    }
    assert facts(outcome, 0, "took") == [3]
    assert facts(outcome, 1, "took") == [2]
    assert run.work().sent == [], "nothing is sent twice"


def test_each_round_emits_only_its_changes() -> None:
    run = Run(PLAN)
    run.sums(0, (1, 1), (2, 1))
    run.work()
    run.sums(0, (2, 5))
    assert output(run.work()) == [{"k": 2, "t": 6, "n": 2}]


def test_a_checkpoint_has_the_changes_of_all_rounds_of_its_epoch() -> None:
    run = Run(PLAN)
    for value in range(3):
        run.sums(0, (value, value))
        run.work()
    run.tell(Message(checkpoint=CheckpointMessage(0, 0, -1)), 0)
    run.sums(0, (7, 7))
    assert not run.work().gathered
    run.tell(Message(checkpoint=CheckpointMessage(0, 0, -1)), 1)
    outcome = run.work()
    (gathered,) = outcome.gathered
    (delta,) = gathered.deltas
    assert sorted(delta["__key"].to_pylist()) == [0, 1, 2]
    assert gathered.vitals.rows == 3
    assert [sent.back.message for sent in outcome.sent if sent.back][:2] == [0, 0]
    assert output(outcome) == [{"k": 7, "t": 7, "n": 1}]


def test_different_checkpoints_are_refused() -> None:
    run = Run(PLAN)
    run.tell(Message(checkpoint=CheckpointMessage(0, 0, -1)), 0)
    run.tell(Message(checkpoint=CheckpointMessage(1, 1, -1)), 1)
    with pytest.raises(ProtocolError, match="different checkpoints"):
        run.work()


def test_invalid_frames_are_refused() -> None:
    with pytest.raises(ProtocolError):
        Run(PLAN).rounds.receive(2, Frame(leave=True))
    with pytest.raises(ProtocolError):
        Run(PLAN).rounds.receive(0, Frame(chunk=Chunk(0, ROWS)))


WINDOWS = WindowPlan(TIMED, ["k"], {"n": count()}, tumbling("10ms"), "at")


def test_a_window_closes_with_the_watermark_of_all_couriers() -> None:
    run = Run(WINDOWS)
    run.events(0, (1, 3), (1, 12))
    run.time(0, 20)
    outcome = run.work()
    assert output(outcome) == []
    assert run.rounds.time.watermark is None, "the other courier has sent no watermark yet"
    run.events(1, (1, 4))
    run.time(1, 11)
    run.events(1, (1, 13))
    outcome = run.work()
    assert [row["n"] for row in output(outcome)] == [2], (
        "rows before the watermark, and none after it"
    )
    assert facts(outcome, 0, "watermark_ms") == facts(outcome, 1, "watermark_ms") == [11]
    run.time(1, None, idle=True)
    outcome = run.work()
    assert [row["n"] for row in output(outcome)] == [2]
    assert facts(outcome, 1, "watermark_ms") == [20]
    run.time(1, 5)
    run.work()
    assert run.rounds.time.watermark == 20, "time does not go back"


def test_a_courier_that_wakes_gets_the_watermark() -> None:
    run = Run(WINDOWS)
    run.time(1, 5, idle=True)
    run.time(0, 30)
    run.work()
    run.time(1, 5)
    outcome = run.work()
    assert facts(outcome, 1, "watermark_ms") == [30]
    assert facts(outcome, 0, "watermark_ms") == []
    assert run.work().sent == []


def test_time_does_not_overtake_held_rows() -> None:
    run = Run(WINDOWS)
    run.time(1, None, idle=True)
    run.events(0, (1, 3))
    run.work()
    other = Run(WINDOWS)
    other.time(1, None, idle=True)
    other.work()
    handing = Handing(tuple(range(SLOTS)), HOST, "here", "there", "there")
    run.tell(Message(reroute=Reroute(0, "step", (handing,))))
    run.work()
    taken = Handing(tuple(range(SLOTS)), "elsewhere", "elsewhere", HOST, "here")
    other.tell(Message(reroute=Reroute(0, "step", (taken,))), 0)
    other.events(0, (1, 4))
    other.time(0, 11)
    (need,) = (need for need in other.work().needs if isinstance(need, NeedKeys))
    ((source, keys),) = need.parts
    assert source is not None
    assert (source.location, source.version, source.run) == ("elsewhere", 0, 0)
    assert other.rounds.time.watermark is None
    entries, unknown = run.holdings.copies.of_keys(keys, 0, 0)
    assert len(unknown) == 0
    assert other.holdings.install(need, keys, entries)
    other.rounds.fetched(need)
    (due,) = other.work().needs
    assert isinstance(due, NeedDue), "other entries may be due there"
    assert output(other.work()) == []
    other.holdings.none_due_before(due, {})
    other.rounds.fetched(due)
    assert [row["n"] for row in output(other.work())] == [2]
    assert other.rounds.time.watermark == 11


def test_all_windows_close_at_the_end() -> None:
    run = Run(WINDOWS)
    run.events(0, (1, 3))
    run.time(0, 3, final=True)
    assert output(run.work()) == []
    run.time(1, None, final=True)
    outcome = run.work()
    assert [row["n"] for row in output(outcome)] == [1]
    assert facts(outcome, 0, "final") == facts(outcome, 1, "final") == [True]
    assert not run.work().sent


def test_the_time_of_day_closes_windows_by_itself() -> None:
    plan = WindowPlan(
        TIMED, ["k"], {"n": count()}, session_window("50ms", clock="processing"), None
    )
    run = Run(plan)
    run.now_ms = 1000
    run.rows(
        0, pa.record_batch([pa.array([1]), pa.array([0], pa.timestamp("ms"))], schema=TIMED), 1000
    )
    assert output(run.work()) == []
    wait = run.rounds.wakes_in_ms()
    assert wait is not None
    assert FIRE_EVERY_MS <= wait <= 51
    run.now_ms += 40
    assert output(run.work()) == []
    run.now_ms += 20
    assert [row["n"] for row in output(run.work())] == [1]
    assert run.rounds.wakes_in_ms() is None, "an idle host sleeps"


def test_a_run_without_timers_never_wakes() -> None:
    run = Run(PLAN)
    run.sums(0, (1, 1))
    run.work()
    assert run.rounds.wakes_in_ms() is None


# Slots that come and go


def reroute(number: int, slots: tuple[int, ...], source: str, target: str) -> Message:
    handing = Handing(slots, source, "there", target, "here")
    return Message(reroute=Reroute(number, "step", (handing,)))


ALL = tuple(range(SLOTS))
SAME = [k for k, slot in enumerate(slots(list(range(100)))) if slot == 0]
"""Keys of one slot."""


def found_elsewhere(need: NeedKeys, **sums: int) -> tuple[Keys, pa.Table]:
    """Return the needed keys, and their entries on a host that has these sums, by key."""
    ((_, keys),) = need.parts
    away = Run(PLAN)
    away.sums(0, *((int(key[1:]), total) for key, total in sums.items()))
    away.tell(reroute(0, ALL, HOST, "there"))
    away.work()
    entries, _ = away.holdings.copies.of_keys(keys, 0, 0)
    return keys, entries


def awaiting(key: int, by_slot: bool = False) -> tuple[Run, NeedKeys]:
    """Return a host that slots have moved to, and its request for the state of a key."""
    run = Run(PLAN)
    run.rounds = Rounds(run.holdings, HOST, 0, 2, lambda: 0, lambda: 0.0)
    run.rounds._held = HeldRows(run.holdings, by_slot)
    run.tell(reroute(0, ALL, "elsewhere", HOST))
    run.sums(0, (key, 1))
    (need,) = run.work().needs
    assert isinstance(need, NeedKeys)
    return run, need


def test_rows_with_state_overtake_rows_that_wait() -> None:
    """Rows of the same slot do so, too. A courier is told which of its chunks were applied."""
    here, away = SAME[:2]
    run, need = awaiting(here)
    run.holdings.install(need, *found_elsewhere(need, **{f"k{here}": 10}))
    run.rounds.fetched(need)
    outcome = run.work()
    assert output(outcome) == [{"k": here, "t": 11, "n": 2}]
    assert facts(outcome, 0, "took") == [1]
    run.sums(0, (away, 2))
    (other,) = run.work().needs
    assert isinstance(other, NeedKeys)
    run.sums(0, (away, 3), (here, 100))
    run.sums(0, (here, 1))
    outcome = run.work()
    assert output(outcome) == [{"k": here, "t": 112, "n": 4}]
    assert (facts(outcome, 0, "took"), facts(outcome, 0, "done")) == ([], [(4,)])
    run.sums(0, (here, 1))
    assert facts(run.work(), 0, "done") == [(5,)], "each chunk is reported once"
    run.holdings.install(other, *found_elsewhere(other, **{f"k{away}": 20}))
    run.rounds.fetched(other)
    outcome = run.work()
    assert output(outcome) == [{"k": away, "t": 25, "n": 3}]
    assert (facts(outcome, 0, "took"), facts(outcome, 0, "done")) == ([5], [])


def test_rows_of_a_slot_keep_their_order_with_by_slot() -> None:
    here, away = SAME[:2]
    run, need = awaiting(here, by_slot=True)
    run.holdings.install(need, *found_elsewhere(need, **{f"k{here}": 10}))
    run.rounds.fetched(need)
    run.work()
    run.sums(0, (here, 1), (away, 2), (here, 3))
    (other,) = run.work().needs
    run.sums(0, (here, 4))
    assert output(run.work()) == []
    assert isinstance(other, NeedKeys)
    run.holdings.install(other, *found_elsewhere(other, **{f"k{away}": 20}))
    run.rounds.fetched(other)
    wanted = [{"k": here, "t": 19, "n": 5}, {"k": away, "t": 22, "n": 2}]
    assert output(run.work()) == wanted


def test_a_row_waits_for_earlier_rows_even_if_its_state_has_arrived() -> None:
    """State is installed a moment before the rows that wait for it are released."""
    key = SAME[0]
    run, need = awaiting(key)
    run.holdings.install(need, *found_elsewhere(need, **{f"k{key}": 10}))
    run.sums(1, (key, 2))
    assert output(run.work()) == []
    run.rounds.fetched(need)
    outcome = run.work()
    assert output(outcome) == [{"k": key, "t": 13, "n": 3}]
    assert (facts(outcome, 0, "took"), facts(outcome, 1, "took")) == ([1], [2])


def test_a_row_waits_for_earlier_rows_even_if_all_slots_are_complete() -> None:
    """The last slot fetched in the background is complete a moment before its rows are released."""
    key = SAME[0]
    run, need = awaiting(key)
    run.holdings.install(need, *found_elsewhere(need, **{f"k{key}": 10}))
    for slot in ALL:
        run.holdings.residence.complete(slot)
    run.sums(1, (key, 2))
    assert output(run.work()) == []
    run.rounds.state_came()
    assert output(run.work()) == [{"k": key, "t": 13, "n": 3}]


def test_a_released_copy_does_not_fire() -> None:
    """It stays in the table while there are other copies, but its windows belong to the new owner."""
    run = Run(WindowPlan(TIMED, ["k"], {"n": count()}, tumbling("10ms"), "at"))
    run.events(0, *((k, 5) for k in range(8)))
    run.tell(reroute(0, ALL[:2], HOST, "other"))
    run.tell(Message(checkpoint=CheckpointMessage(1, 0, -1)))
    run.tell(Message(checkpoint=CheckpointMessage(2, 1, 0)))
    run.work()
    run.holdings.release()
    run.tell(reroute(3, ALL[2:3], HOST, "other"))
    run.work()
    for courier in (0, 1):
        run.time(courier, 20)
    fired = {row["k"] for row in output(run.work())}
    owned = run.holdings.residence.owned
    keys = run.plan.codec.encode(
        pa.record_batch([pa.array(range(8)), pa.array([0] * 8, pa.timestamp("ms"))], ["k", "window_start"])
    )  # fmt: skip
    places = slots_of(keys.hashes, SLOTS)
    assert fired == {k for k in range(8) if owned[places[k]]}


def test_a_copy_with_evicted_entries_does_not_claim_that_they_do_not_exist() -> None:
    run = Run(PLAN)
    run.sums(0, *((k, 1) for k in range(8)))
    run.tell(Message(checkpoint=CheckpointMessage(0, 0, -1)))
    run.work()
    run.tell(reroute(1, ALL, HOST, "other"))
    run.holdings._memory_limit = 1
    run.tell(Message(checkpoint=CheckpointMessage(2, 1, 0)))
    run.work()
    keys = run.plan.codec.encode(pa.record_batch({"k": pa.array(range(8), pa.int64())}))
    entries, unknown = run.holdings.copies.of_keys(keys, 1, 0)
    assert entries.num_rows + len(unknown) == 8
    assert run.holdings.copies.lacking(np.arange(SLOTS)) == 0


def test_entries_fetched_before_a_slot_left_are_not_used_when_it_is_back() -> None:
    run = Run(PLAN, version=0, source="elsewhere")
    run.sums(0, (1, 1))
    (need,) = run.work().needs
    assert isinstance(need, NeedKeys)
    ((_, keys),) = need.parts
    none = run.holdings.operator.table.schema.empty_table()
    holdings = run.holdings
    holdings.give(np.arange(SLOTS), 0, 0)
    assert holdings.install(need, keys, none)
    assert not holdings.operator.table.known(keys).any(), "the slots have left"
    holdings.take(np.arange(SLOTS), None, False, False)
    assert holdings.install(need, keys, none)
    assert not holdings.operator.table.known(keys).any(), "the request is older than their return"
    assert holdings.install(holdings.need_keys(keys), keys, none)
    assert holdings.operator.table.known(keys).all()


def test_slots_that_came_just_before_the_end_are_caught_up_with() -> None:
    """At the end of the input all due times are reached, but not the one that stands for "no entry"."""
    run = Run(WINDOWS)
    for courier in (0, 1):
        run.time(courier, 20)
    run.work()
    run.tell(reroute(1, ALL, "other", HOST))
    for courier in (0, 1):
        run.time(courier, 20, final=True)
    (due,) = run.work().needs
    assert isinstance(due, NeedDue)
    run.holdings.none_due_before(due, {})
    run.rounds.fetched(due)
    outcome = run.work()
    assert (facts(outcome, 0, "final"), facts(outcome, 0, "caught_up")) == ([True], [1])


def test_couriers_are_told_when_due_entries_of_new_slots_have_fired() -> None:
    """The previous host of the slots had an earlier watermark."""
    plan = WindowPlan(TIMED, ["k"], {"n": count()}, tumbling("10ms"), "at")
    old, run = Run(plan), Run(plan)
    old.events(0, (1, 5))
    old.tell(reroute(0, ALL, HOST, "other"))
    old.work()
    run.holdings.give(np.arange(SLOTS), 0, 0)
    run.holdings.release()
    for courier in (0, 1):
        run.time(courier, 20)
    assert facts(run.work(), 0, "watermark_ms") == [20]
    run.tell(reroute(1, ALL, "other", HOST))
    outcome = run.work()
    assert facts(outcome, 0, "message") == [1]
    assert facts(outcome, 0, "caught_up") == []
    (need,) = outcome.needs
    assert isinstance(need, NeedDue)
    ((_, slots),) = need.parts
    table, after = old.holdings.copies.of_due(slots, need.limits, 0, 0)
    keys = plan.codec.from_storage(table.column("__key"))
    assert run.holdings.install(need, keys, table)
    run.holdings.none_due_before(need, after)
    run.rounds.fetched(need)
    run.now_ms += FIRE_EVERY_MS
    outcome = run.work()
    assert [row["n"] for row in output(outcome)] == [1]
    assert facts(outcome, 0, "caught_up") == [1]


def test_after_a_rollback_slots_that_had_left_are_fetched_from_the_store() -> None:
    """They are read at the rollback's version, though that was not known to be durable when they left."""
    run = Run(PLAN)
    run.sums(0, *((k, 1) for k in range(8)))
    run.tell(Message(checkpoint=CheckpointMessage(0, 0, -1)))
    run.tell(reroute(1, ALL, HOST, "other"))
    run.tell(Message(checkpoint=CheckpointMessage(2, 1, -1)))
    run.tell(reroute(3, ALL, "other", HOST))
    run.work()
    run.holdings.return_to(0)
    keys = run.plan.codec.encode(pa.record_batch({"k": pa.array(range(8), pa.int64())}))
    missing = run.holdings.missing([keys])
    assert missing is not None
    assert len(missing) == 8
    assert run.holdings.residence.store_version == 0


# Messages overtake


def test_a_reroute_overtakes_rows_of_other_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of its slots are applied first, then its slots leave. Couriers are told in its turn.

    No time passes before that.
    """
    monkeypatch.setattr("penstock.host.rounds.MOST_ROWS", 4)
    run = Run(WINDOWS)
    for courier in (0, 1):
        run.time(courier, 5)
    run.work()
    keys = run.plan.codec.encode(
        pa.record_batch([pa.array(range(20)), pa.array([0] * 20, pa.timestamp("ms"))], ["k", "window_start"])
    )  # fmt: skip
    of = slots_of(keys.hashes, SLOTS)
    going, staying = np.flatnonzero(of == 0).tolist(), np.flatnonzero(of != 0).tolist()
    run.events(0, *((k, 7) for k in staying[:4]))
    run.events(0, *((k, 7) for k in (staying[4], going[0], staying[5])))
    for courier in (0, 1):
        run.time(courier, 15)
        run.events(courier, *((k, 17) for k in staying[:3]))
        run.tell(reroute(0, (0,), HOST, "there"), courier)
    outcome = run.work()
    assert outcome.acted
    assert outcome.rows == 1, "only the row of the slot"
    assert run.holdings.residence.holds(np.array([0]), 0, 0).all()
    entries, unknown = run.holdings.copies.of_keys(keys.take(np.array(going[:1])), 0, 0)
    assert (entries.num_rows, len(unknown)) == (1, 0)
    assert run.rounds.acted == -1
    assert run.rounds.time.watermark == 5
    news, fired = list[Any](), list[Any]()
    while outcome.more:
        outcome = run.work()
        backs = [sent.back for sent in outcome.sent if sent.courier == 0 and sent.back]
        news += [("message", back.message) for back in backs if back.message is not None]
        news += [("time", b.watermark_ms) for b in backs if b.watermark_ms is not None]
        fired += [row["k"] for row in output(outcome)]
    assert news == [("message", 0), ("time", 15)]
    assert sorted(fired) == sorted(staying[:6]), (
        "all windows of other slots close, and none of this slot"
    )
