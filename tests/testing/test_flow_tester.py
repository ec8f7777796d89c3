"""`FlowTester` as its users see it: whole flows without Spark, with moves and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import FAULT_POINTS, Fault, FlowTester, assert_survives, source

CLICKS = ps.flow(source("user string, n long")).key_by("user", slots=8).aggregate(total=ps.sum("n"))
STEP = "aggregate-1"


def clicks(*users: str) -> list[dict[str, Any]]:
    return [{"user": user, "n": 1} for user in users]


def totals(table: pa.Table) -> dict[str, int]:
    return {row["user"]: row["total"] for row in table.to_pylist()}


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


# Operators


def test_aggregates_keep_their_state_from_epoch_to_epoch() -> None:
    with FlowTester(CLICKS) as tester:
        assert totals(tester.run(clicks("ann", "bob", "ann"))) == {"ann": 2, "bob": 1}
        assert totals(tester.run(clicks("ann"))) == {"ann": 3}
        assert tester.run().num_rows == 0
        assert tester.epoch == 3
        assert [progress.rows for progress in tester.progress] == [3, 1, 0]


def test_windows_close_by_event_time_and_late_rows_are_kept() -> None:
    flow = (
        ps.flow(source("user string, at timestamp"), event_time="at", delay="2s")
        .key_by("user")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count())
    )
    with FlowTester(flow) as tester:
        assert tester.run([("ann", at(1)), ("ann", at(9)), ("ann", at(13))]).num_rows == 0
        assert tester.watermarks == {"window-1": int(at(11).timestamp() * 1000)}
        # the watermark of an epoch is that of the rows before it
        (closed,) = tester.run([{"user": "ann", "at": "2026-01-01 00:00:05"}]).to_pylist()
        assert (closed["user"], closed["window_start"], closed["n"]) == ("ann", at(0), 2)
        assert tester.late["window-1"].to_pylist() == [{"user": "ann", "at": at(5)}]
        (last,) = tester.finish().to_pylist()
        assert (last["window_start"], last["n"]) == (at(10), 1)
        with pytest.raises(ps.FlowError, match="the input of this flow has ended"):
            tester.run([("ann", at(20))])


def test_a_join_takes_the_rows_of_both_sides_by_place_or_by_name() -> None:
    orders = ps.flow(source("id long, user string", name="orders"))
    people = ps.flow(source("user string, city string"))
    with FlowTester(orders.join(people, on="user")) as tester:
        assert tester.run([(1, "ann")]).num_rows == 0
        wanted = {"id": 1, "user": "ann", "city": "Oslo"}
        assert tester.run([], [("ann", "Oslo")]).to_pylist() == [wanted]
        assert tester.run(orders=[(2, "ann")]).to_pylist() == [wanted | {"id": 2}]
        assert tester.run(right=[("ann", "Rome")]).num_rows == 2
        with pytest.raises(ps.FlowError, match=r"no source 'left'.*the names are orders, right"):
            tester.run(left=[])
        with pytest.raises(ps.FlowError, match="'orders' got rows by place and by name"):
            tester.run([(1, "ann")], orders=[(1, "ann")])
        with pytest.raises(ps.FlowError, match=r"rows for 3 sources.*the flow has 2"):
            tester.run([], [], [])


class Silence(ps.KeyedProcessor):
    """Reports users that were silent for ten seconds."""

    output_schema = "user string, seen long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.get_value_state("seen", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        self.seen.update(((self.seen.get() or (0,))[0] + len(list(rows)),))
        for old in self.handle.list_timers():
            self.handle.delete_timer(old)
        self.handle.register_timer(timers.processing_time_ms + 10_000)
        return iter(())

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield key[0], self.seen.get().n
        self.seen.clear()


def test_a_processor_has_timers_by_processing_time() -> None:
    flow = ps.flow(source("user string")).key_by("user").process(Silence())
    with FlowTester(flow, now_ms=5_000) as tester:
        tester.run([("ann",), ("bob",), ("ann",)])
        assert tester.advance("6s").num_rows == 0
        tester.run([("bob",)])
        tester.kill(tester.hosts["process-1"][0])
        assert tester.advance("4s").to_pylist() == [{"user": "ann", "seen": 2}]
        tester.restart()
        assert tester.advance("6s").to_pylist() == [{"user": "bob", "seen": 2}]
        assert tester.now_ms == 21_000
        assert tester.state("process-1") == {}


def test_a_top_gives_changes() -> None:
    flow = ps.flow(source("shop string, price long")).key_by("shop").top(1, by="price desc")
    with FlowTester(flow) as tester:
        assert tester.run([("a", 3), ("a", 2)]).to_pylist() == [
            {"shop": "a", "price": 3, ps.CHANGE: 1}
        ]
        changes = tester.run([("a", 5)]).to_pylist()
        assert sorted((row["price"], row[ps.CHANGE]) for row in changes) == [(3, -1), (5, 1)]


def test_distinct_forgets_after_its_ttl() -> None:
    flow = ps.flow(source("id long")).key_by("id").distinct(ttl="1 minute")
    with FlowTester(flow) as tester:
        assert tester.run([(1,), (2,), (1,)]).num_rows == 2
        assert tester.run([(1,)]).num_rows == 0
        tester.advance("2 minutes")
        assert tester.run([(1,)]).num_rows == 1


def test_stateless_flows_have_no_hosts() -> None:
    flow = ps.flow(source("n long")).select("n", twice=pa.compute.field("n") * 2)
    with FlowTester(flow) as tester:
        assert tester.run([(3,)]).to_pylist() == [{"n": 3, "twice": 6}]
        assert tester.hosts == {}


def test_sources_of_spark_and_of_live_flows_are_not_read() -> None:
    flow = ps.flow(ps.rate(1000)).key_by("key").aggregate(n=ps.count())
    with FlowTester(flow) as tester:
        row = {"arrival": at(0), "key": 7, "value": 1}
        assert tester.run([row, row]).to_pylist() == [{"key": 7, "n": 2}]


@pytest.mark.parametrize("whole", [False, True])
def test_order_is_kept_where_the_flow_asks_for_it(whole: bool) -> None:
    flow = ps.flow(source("user string")).key_by("user").aggregate(n=ps.count())
    users = [(f"u{n % 7}",) for n in range(40)]
    with FlowTester(flow.on_one_host() if whole else flow.ordered(), hosts=3) as tester:
        given = [row["user"] for row in tester.run(users).to_pylist()]
    assert given == [f"u{n}" for n in range(7)]


def test_functions_give_what_hosts_give() -> None:
    flow = ps.flow(source("text string")).map_batches(words, "word string")
    counts = flow.key_by("word", slots=4).aggregate(n=ps.count())
    epochs = [[("a b a",), ("c",)], [("b b",)]]
    with FlowTester(counts) as plain, FlowTester(counts, functions=1.0, partitions=2) as helped:
        for rows in epochs:
            expected = sorted(plain.run(rows).to_pylist(), key=str)
            assert sorted(helped.run(rows).to_pylist(), key=str) == expected
            assert helped.progress[-1].functions.rows == len(rows)
    kills = [Fault(f"courier.{point}", "kill") for point in ("offload", "offloaded")]
    fired = assert_survives(counts, epochs, kills, functions=1.0)
    assert fired == ["courier.offload", "courier.offloaded"]


def words(batch: pa.RecordBatch) -> pa.RecordBatch:
    split = [word for text in batch.column("text").to_pylist() for word in text.split()]
    return pa.record_batch({"word": pa.array(split, pa.string())})


def test_steps_that_cannot_run_in_functions_are_named() -> None:
    flow = ps.flow(source("user string")).key_by("user").process(Silence())
    with pytest.raises(ps.FlowError, match=r"no step .* can run in functions \(process-1: "):
        FlowTester(flow, functions=1.0)
    with pytest.raises(ps.SettingError, match="functions is 2"):
        FlowTester(CLICKS, functions=2)


# Moves, deaths, starts


def test_a_move_a_kill_and_a_restart_lose_nothing() -> None:
    with FlowTester(CLICKS, partitions=3) as tester:
        rows, expected = clicks(*"abcdefgh"), dict.fromkeys("abcdefgh", 1)
        assert totals(tester.run(rows)) == expected
        tester.scale(STEP, 3)
        assert totals(tester.run(rows)) == dict.fromkeys(expected, 2)
        assert sorted(map(len, tester.slots.values())) == [2, 3, 3]
        tester.move(STEP, range(8), to=f"{STEP}/2")
        assert totals(tester.run(rows)) == dict.fromkeys(expected, 3)
        assert len(tester.slots[f"{STEP}/2"]) == 8
        assert sum(len(h.slots) for h in tester.progress[-1].migration.handovers) > 0
        tester.kill(f"{STEP}/2")
        assert totals(tester.run(rows)) == dict.fromkeys(expected, 4)
        assert tester.progress[-1].runs > 1
        tester.restart()
        assert totals(tester.run(rows)) == dict.fromkeys(expected, 5)
        state = tester.state(STEP)
        assert {user: state[user]["sum(n)"] for user in state} == dict.fromkeys(expected, 5)


def test_a_closed_tester_says_so_and_leaves_arrow_as_it_was() -> None:
    threads = pa.cpu_count()
    with FlowTester(CLICKS) as tester:
        tester.kill(f"{STEP}/1")
        tester.run(clicks("ann"))
    assert pa.cpu_count() == threads
    with pytest.raises(ps.FlowError, match="this FlowTester is closed"):
        tester.run(clicks("ann"))


def test_hosts_can_be_changed_before_the_first_epoch() -> None:
    with FlowTester(CLICKS, hosts=1) as tester:
        tester.scale(STEP, 2)
        assert tester.hosts == {STEP: [f"{STEP}/0", f"{STEP}/1"]}
        tester.run(clicks(*"abcdefgh"))
        assert sorted(tester.slots) == [f"{STEP}/0", f"{STEP}/1"]


def test_a_checkpoint_is_continued_by_the_next_tester(tmp_path: Path) -> None:
    with FlowTester(CLICKS, checkpoint=tmp_path) as tester:
        tester.run(clicks("ann"))
    with FlowTester(CLICKS, hosts=3, checkpoint=tmp_path) as tester:
        assert tester.epoch == 1
        assert totals(tester.run(clicks("ann"))) == {"ann": 2}
    other = ps.flow(source("user string")).key_by("user", slots=4).aggregate(n=ps.count())
    with pytest.raises(ps.CheckpointError, match="slot count"):
        FlowTester(other, checkpoint=tmp_path)


def test_a_checkpoint_is_continued_by_a_flow_with_more_steps_and_names(tmp_path: Path) -> None:
    with FlowTester(CLICKS, checkpoint=tmp_path) as tester:
        tester.run(clicks("ann"))
    rows = ps.flow(source("user string, n long")).select("user", "n")
    named = rows.key_by("user", slots=8).aggregate(total=ps.sum("n"), name="clicks")
    with FlowTester(named, checkpoint=tmp_path) as tester:
        assert totals(tester.run(clicks("ann"))) == {"ann": 2}
        assert tester.hosts == {"clicks": ["clicks/0", "clicks/1"]}


def test_an_epoch_that_fails_has_changed_nothing() -> None:
    with FlowTester(CLICKS) as tester:
        tester.run(clicks("ann"))
        with pytest.raises(ps.PenstockError, match="null"):
            tester.run([*clicks("ann"), {"user": None, "n": 1}])
        assert totals(tester.run(clicks("ann"))) == {"ann": 2}


def test_rows_that_cannot_be_processed_become_dead_letters() -> None:
    with FlowTester(CLICKS, on_error="dead_letter") as tester:
        assert totals(tester.run([*clicks("ann"), {"user": None, "n": 1}])) == {"ann": 1}
        (letter,) = tester.dead_letters
        assert letter["step"] == STEP


# Faults


@pytest.mark.parametrize("do", ["kill", "raise", "stop"])
@pytest.mark.parametrize("point", ["host.applied", "courier.sent", "driver.sealed"])
def test_a_fault_happens_and_changes_nothing(point: str, do: Any) -> None:
    settings = ps.Settings(heartbeat_ms=50, host_lost_ms=500)
    with FlowTester(CLICKS, settings=settings) as tester:
        tester.run(clicks("ann", "bob"))
        if (point, do) == ("driver.sealed", "stop"):
            with (
                pytest.raises(ps.SettingError, match='use "kill"'),
                tester.faults(Fault(point, do)),
            ):
                pass
            return
        with tester.faults(Fault(point, do)) as faults:
            assert totals(tester.run(clicks("ann", "ann"))) == {"ann": 3}
        assert [passed.point for passed in faults.fired] == [point]
        assert totals(tester.run(clicks("ann", "bob"))) == {"ann": 4, "bob": 2}


def test_faults_of_settings_kill_hosts_and_not_the_test() -> None:
    kill = Fault("host.seal", "kill", where={"epoch": 1, "run": 0})
    with FlowTester(CLICKS, settings=ps.Settings(faults=(kill,))) as tester:
        assert totals(tester.run(clicks("ann"))) == {"ann": 1}
        assert totals(tester.run(clicks("ann"))) == {"ann": 2}
        assert [progress.runs for progress in tester.progress] == [1, 2]


def test_a_point_of_live_flows_is_refused() -> None:
    with (
        FlowTester(CLICKS) as tester,
        pytest.raises(ps.SettingError, match=r"only live flows pass host\.round"),
        tester.faults(Fault("host.round")),
    ):
        pass


def test_a_flow_survives_a_crash_at_each_point() -> None:
    epochs = [clicks(*"abcabc"), clicks(*"aabbdd"), clicks(*"abcdef")]
    settings = ps.Settings(compact_epochs=1, keep_epochs=2)
    fired = Counter(assert_survives(CLICKS, epochs, partitions=2, settings=settings))
    unseen = {"sink.merge", "courier.offload", "courier.offloaded"}
    moves = {
        "host.began", "host.fetch", "host.fetched", "host.serve", "host.install", "host.trickle",
    }  # fmt: skip
    upkeep = {"host.compact", "driver.layout", "driver.clean"}
    assert set(fired) >= set(FAULT_POINTS) - unseen - moves - upkeep
    assert set(fired) & moves


TIMED = ps.flow(source("user string, at timestamp", name="timed"), event_time="at")
COUNTED = TIMED.key_by("user", slots=8).window(ps.tumbling("10s")).aggregate(n=ps.count())
FLOWS = {
    "window": COUNTED,
    "windows of windows": COUNTED.key_by("window_end", slots=4).top(
        1, "n desc", until="window_end"
    ),
    "session": TIMED.key_by("user").window(ps.session_window("3s")).aggregate(n=ps.count()),
    "top": TIMED.key_by("user").top(2, by="at desc"),
    "distinct": TIMED.key_by("user").distinct(),
    "processor": TIMED.key_by("user").process(Silence()),
    "ordered": TIMED.ordered().key_by("user").distinct(),
    "one host": COUNTED.on_one_host(),
    "self-join": TIMED.join(TIMED.select("user", seen="at"), on="user", ttl="1 hour"),
}


@pytest.mark.parametrize("name", FLOWS)
def test_all_kinds_of_flows_survive(name: str) -> None:
    epochs = [[(f"u{n % 5}", at(10 * turn + n)) for n in range(9)] for turn in range(3)]
    points = ["host.applied", "host.seal", "courier.sent", "driver.sealed"]
    kills = [Fault(point, "kill") for point in points]
    assert assert_survives(FLOWS[name], epochs, kills) == points


def test_what_does_not_survive_is_told() -> None:
    runs = iter(range(100))

    def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
        """Another row whenever it is called: faults make a difference."""
        number = next(runs) if batch.num_rows else 0
        return pa.record_batch({"n": pa.array([number] * batch.num_rows, pa.int64())})

    flow = ps.flow(source("n long")).map_batches(counted).key_by("n").aggregate(c=ps.count())
    with pytest.raises(AssertionError, match=r"with a fault at host\.applied, epoch \d gave"):
        assert_survives(flow, [[(1,)], [(1,)]], [Fault("host.applied", "kill")])


# Refusals


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"user": "ann"}], "row 0 of the source: the column 'n' is missing"),
        (
            [("a", 1), ("b", "x")],
            r"row 1 of the source: the column 'n' takes int64, not 'x' \(str\)",
        ),
        ([{"user": "a", "m": 1}], "there is no column 'm'"),
        (pa.table({"user": ["a"]}), "the source got the columns user"),
        (pa.table({"user": ["a"], "n": ["x"]}), "the source got columns of other types"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, told: str) -> None:
    with FlowTester(CLICKS) as tester:
        with pytest.raises(ps.FlowError, match=told) as refused:
            tester.run(rows)
        assert refused.value.hint == "give the columns user string, n int64"
        assert totals(tester.run(pa.table({"n": pa.array([2], pa.int32()), "user": ["a"]}))) == {
            "a": 2
        }


@pytest.mark.parametrize("rows", [{"user": "ann", "n": 1}, "ann", 7])
def test_what_is_no_list_of_rows_is_refused(rows: Any) -> None:
    with FlowTester(CLICKS) as tester, pytest.raises(ps.FlowError, match=r"run\(\[\{"):
        tester.run(rows)


def test_tables_and_data_frames_are_taken() -> None:
    columns = {"n": [1, 2], "user": ["ann", "bob"]}
    with FlowTester(CLICKS) as tester:
        for rows in (pa.table(columns), pa.record_batch(columns), pd.DataFrame(columns)):
            tester.run(rows)
        assert totals(tester.run(clicks("ann", "bob"))) == {"ann": 4, "bob": 7}


def test_unknown_steps_and_hosts_are_named_with_those_that_there_are() -> None:
    with FlowTester(CLICKS) as tester:
        tester.run(clicks("ann"))
        for ask in (
            lambda: tester.scale("sums", 2),
            lambda: tester.move("sums", 0, to=f"{STEP}/0"),
            lambda: tester.state("sums"),
        ):
            with pytest.raises(ps.SettingError, match="no step 'sums'") as refused:
                ask()
            assert STEP in refused.value.hint
        with pytest.raises(ps.SettingError, match=f"unknown host 'x'.*{STEP}/0"):
            tester.kill("x")


def test_what_is_no_flow_is_refused() -> None:
    with pytest.raises(ps.FlowError, match="FlowTester takes a flow, but got KeyedFlow"):
        FlowTester(ps.flow(source("user string")).key_by("user"))  # type: ignore[arg-type]
    with pytest.raises(ps.SettingError, match="partitions is 0"):
        FlowTester(CLICKS, partitions=0)
    with pytest.raises(ps.SettingError, match="steps that the flow does not have: sums"):
        FlowTester(CLICKS, hosts={"sums": 1})
    same = source("user string", name="s")
    with pytest.raises(ps.FlowError, match="two sources of the flow are named s"):
        FlowTester(ps.flow(same).join(ps.flow(same), on="user"))


def test_a_source_without_rows_cannot_be_started() -> None:
    made = source("user string")
    with pytest.raises(ps.FlowError, match="no rows of its own"):
        made.partitions()
