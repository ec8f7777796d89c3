"""Live flows on Spark: hosts and couriers are tasks, and any of them may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.crew_size import CrewLimits
from penstock.errors import FlowError, SettingError
from penstock.faults import Fault
from penstock.flows import start_live
from penstock.sim.shapes import shape
from penstock.spark.query import FlowQuery
from penstock.testing import Pace

WAIT_S = 60.0
RATE = 2_000


def until(query: FlowQuery, condition: Callable[[], object]) -> None:
    ends = time.monotonic() + WAIT_S
    while not condition():
        if (failed := query.exception()) is not None:
            raise failed
        assert time.monotonic() < ends, f"it did not come to that: {query.status}"
        time.sleep(0.02)


def counts(sink: Any) -> dict[int, int]:
    """Last count of each key."""
    found: dict[int, int] = {}
    for row in sink.rows():
        found[row["key"]] = max(found.get(row["key"], 0), row["n"])
    return found


def wanted(rows: int, keys: int) -> dict[int, int]:
    """Correct count of each key after this many rows."""
    made = ps.rate(RATE, keys=keys, rows=rows)
    reader = made.reader(
        {p: at | {"start_ms": 0} for p, at in made.first(made.partitions()).items()}
    )
    found: dict[int, int] = {}
    while not reader.ended:
        for polled in reader.poll(10, 100_000):
            for key in polled.batch.column("key").to_pylist():
                found[key] = found.get(key, 0) + 1
    return found


def counted(rows: int | None, keys: int = 100, partitions: int = 2) -> ps.Flow:
    source = ps.rate(RATE, keys=keys, rows=rows, partitions=partitions)
    return ps.flow(source).key_by("key", slots=8).aggregate(n=ps.count())


def test_a_live_flow_counts_all_rows_and_finishes(spark: SparkSession, checkpoint: str) -> None:
    sink, rows = ps.collect(), 3_000
    query = counted(rows).start(
        sink, mode="live", checkpoint=checkpoint, checkpoint_every="200ms", couriers=2
    )
    assert query.await_termination(WAIT_S)
    assert query.status.state == "finished"
    assert counts(sink) == wanted(rows, 100)
    assert sum(one.rows for one in query.progress) == rows


def test_moves_scaling_kills_and_a_restart_lose_nothing(
    spark: SparkSession, checkpoint: str
) -> None:
    sink, rows = ps.collect(), 24_000
    flow = counted(rows)
    start: dict[str, Any] = {"mode": "live", "checkpoint": checkpoint, "checkpoint_every": "200ms"}
    query = flow.start(sink, hosts=2, couriers=2, **start)
    (step,) = query.placements() or ["aggregate-1"]
    until(query, lambda: len(query.progress) >= 2)
    query.move(step, range(4), f"{step}/1")
    until(query, lambda: query.status.pending_slots == 0)
    query.scale(step, 3)
    until(query, lambda: query.status.pending_slots == 0 and len(query.status.hosts) == 3)

    def kill(pid: int) -> None:
        before = query.progress[-1].epoch
        os.kill(pid, signal.SIGKILL)
        until(query, lambda: query.progress[-1].epoch > before + 2)

    kill(query.status.hosts[f"{step}/0"])
    kill(query.status.couriers["courier/1"])
    query.stop()
    assert query.status.state == "stopped"
    query = flow.start(sink, hosts=2, couriers=1, **start)
    assert query.await_termination(WAIT_S)
    assert counts(sink) == wanted(rows, 100)


@pytest.mark.slow
def test_couriers_of_an_elastic_flow_follow_the_load(
    spark: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one comes, and dies."""
    sink, rows = ps.collect(), 50_000
    flow = counted(rows).sla("1s").elastic(at_most=1)
    limits = CrewLimits(at_most=2, high=0.02, target=0.01, low=0.01, looks=1)
    monkeypatch.setattr(start_live, "_crew_limits", lambda slots, taken: limits)
    query = flow.start(sink, mode="live", checkpoint=checkpoint, checkpoint_every="200ms", hosts=1)
    until(query, lambda: len(query.status.couriers) == 2)
    before = query.progress[-1].epoch
    until(query, lambda: query.progress[-1].epoch > before + 2)
    os.kill(query.status.couriers["courier/1"], signal.SIGKILL)
    assert query.await_termination(WAIT_S)
    assert counts(sink) == wanted(rows, 100)
    told = [entry.text for entry in query.journal if entry.event == "couriers"]
    assert told[0].startswith("2 couriers instead of 1: courier 0 was busy for"), told


class Seen(ps.KeyedProcessor):
    """Gives each row, with how many its key has had."""

    output_schema = "key long, value long, seen long"

    def init(self, handle: Any) -> None:
        self.count = handle.get_value_state("count", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            yield (row.key, row.value, n)
        self.count.update((n,))


@pytest.mark.parametrize("one_host", [False, True])
def test_rows_leave_in_the_order_of_each_partition(
    spark: SparkSession, checkpoint: str, one_host: bool
) -> None:
    """Through two steps with different keys, while a host is killed and, with several, slots move."""
    sink, rows, partitions = ps.collect(), 30_000, 2
    source = ps.rate(RATE, keys=100, rows=rows, partitions=partitions)
    flow = ps.flow(source).key_by("key", slots=8).process(Seen())
    flow = flow.map_batches(
        lambda batch: batch.set_column(0, "key", pc.bit_wise_and(batch.column("value"), 63))
    )
    flow = flow.key_by("key", slots=8).process(Seen())
    flow = flow.on_one_host() if one_host else flow.ordered()
    start: dict[str, Any] = {"mode": "live", "checkpoint": checkpoint, "checkpoint_every": "200ms"}
    query = flow.start(sink, hosts=2, couriers=2, **start)
    until(query, lambda: len(query.progress) >= 2)
    first = min(query.placements())
    if not one_host:
        query.move(first, range(4), f"{first}/1")
        until(query, lambda: query.status.pending_slots == 0)
    before = query.progress[-1].epoch
    os.kill(query.status.hosts[f"{first}/0"], signal.SIGKILL)
    until(query, lambda: query.progress[-1].epoch > before + 2)
    assert query.await_termination(WAIT_S)
    values = [row["value"] for row in sink.rows()]
    for partition in range(partitions):
        of_partition = [value for value in values if value % partitions == partition]
        assert of_partition == list(range(partition, rows, partitions))


def test_a_stopped_flow_leaves_nothing_running(spark: SparkSession, checkpoint: str) -> None:
    query = counted(None).start(ps.collect(), mode="live", checkpoint=checkpoint)
    until(query, lambda: any(p.latency and p.latency.p50_ms < 200 for p in query.progress))
    pids = [*query.status.hosts.values(), *query.status.couriers.values()]
    assert len(pids) == 3
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 10
    assert query.status.couriers == {}
    tracker = spark.sparkContext.statusTracker()
    assert not tracker.getActiveJobsIds()


def test_what_live_cannot_do_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    live: dict[str, Any] = {"mode": "live", "checkpoint": str(tmp_path / "c")}
    flow, sink = counted(None), ps.collect()
    frame = ps.flow(spark.readStream.format("rate").load()).key_by("value").aggregate(n=ps.count())
    with pytest.raises(FlowError, match="only Spark can read"):
        frame.start(sink, **live)
    with pytest.raises(FlowError, match="elastic"):
        flow.on_one_host().sla("1s").elastic().start(sink, **live)
    for wrong, what in (
        ({"trigger": "1s"}, "trigger"),
        ({"close": True}, "never ends"),
        ({"couriers": 3}, "partitions"),
        ({"delivery": "twice"}, "delivery"),
        ({"checkpoint": None}, "checkpoint folder"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
    ):
        with pytest.raises(SettingError, match=what):
            flow.start(sink, **(live | wrong))
    wide = ps.flow(ps.rate(RATE)).key_by("key").aggregate(n=ps.count())
    with pytest.raises(SettingError, match="task slots"):
        wide.start(sink, **live, hosts=40)
    with pytest.raises(FlowError, match="mode"):
        flow.start(sink, mode="often")  # type: ignore[arg-type]
    for only_live in ({"couriers": 1}, {"checkpoint_every": "2s"}):
        with pytest.raises(SettingError, match="live flows"):
            flow.start(sink, checkpoint=live["checkpoint"], **only_live)
    with pytest.raises(SettingError, match="delta"):
        flow.start(ps.to("delta", path=str(tmp_path / "out")), **live)
    with pytest.raises(FlowError, match="'user' is not a column"):
        flow.start(ps.to("kafka", servers="-", topic="-", key="user"), **live)
    assert not (tmp_path / "c").exists()


WAITS = """
import sys
import penstock as ps

spark = ps.session(cores=6)
flow = ps.flow(ps.rate(500, keys=10)).key_by("key").aggregate(n=ps.count())
query = flow.start(ps.to("json", path=sys.argv[1]), checkpoint=sys.argv[2], mode="live")
while not query.progress:
    query.await_termination(0.05)
print(*query.status.hosts.values(), *query.status.couriers.values(), flush=True)
query.await_termination()
"""


def test_an_interrupted_script_ends_its_flow_in_good_order(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    script = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path / "out"), checkpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert script.stdout is not None
        tasks = script.stdout.readline().split()
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does
        _, errors = script.communicate(timeout=WAIT_S)
    finally:
        script.kill()
    assert len(tasks) == 3
    assert not [pid for pid in tasks if Path("/proc", pid, "exe").exists()]
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not [
        line for line in errors.splitlines() if "did not end well" in line or "\tat " in line
    ]


def test_functions_carry_a_burst(spark: SparkSession, checkpoint: str) -> None:
    """One host of 1,000 rows a second gets 3,200 for four seconds; processes of this machine help."""
    sink, rows = ps.collect(), 14_400
    source = ps.rate(shape("burst(400, 8, 4s, 4s)"), keys=50, rows=rows, partitions=2)
    query = (
        ps.flow(source, arrival="arrival")
        .key_by("key", slots=8)
        .aggregate(n=ps.count())
        .sla(latency="200ms", window="1s")
        .elastic(at_most=1, functions=ps.LocalFunctions(at_most=8))
        .start(
            sink,
            mode="live",
            checkpoint=checkpoint,
            checkpoint_every="500ms",
            couriers=2,
            settings=ps.Settings(faults=(Fault("host.work", Pace(1_000.0), hits=()),)),
        )
    )
    assert query.await_termination(WAIT_S)
    assert query.status.state == "finished"
    assert sum(counts(sink).values()) == rows
    used = query.money
    assert used is not None
    assert used.functions > 0, "nothing went to functions"
