"""The queries on Spark: their results agree with the oracle, also with moves, scaling and kills."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock_bench.workloads.nexmark.catalog import TITLES
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.generator import generate
from penstock_bench.workloads.nexmark.oracle import answer
from penstock_bench.workloads.nexmark.run import prepare, write_final
from tests.bench.workloads.odd_events import odd_events

Act = Callable[[ps.FlowQuery, int], None]
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")


def result(
    session: SparkSession,
    name: str,
    events: Path,
    work: Path,
    hosts: int = 2,
    batch_rows: int = 2_500,
    act: Act | None = None,
) -> pa.Table:
    """Run a query; `act` is called with it after each epoch."""
    replay = prepare(name, events, work / "events", batch_rows)
    flow = replay.flow(session)
    query = flow.start(
        ps.to("parquet", path=str(work / "rows")),
        checkpoint=str(work / "checkpoint"),
        hosts=hosts,
        trigger="available_now",
        close=True,
    )
    seen = None
    try:
        while not query.await_termination(0.05):
            epoch = query.status.epoch
            if act is not None and epoch is not None and epoch != seen and query.is_active:
                seen = epoch
                act(query, epoch)
    finally:
        query.stop()
    output = work / "final.parquet"
    write_final(replay, flow.schema, work / "rows", output)
    return pq.read_table(output)


def rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def check(name: str, found: pa.Table, events: Path) -> None:
    expected = answer(name, events)
    if name == "q12":
        found = found.group_by("bidder").aggregate([("bid_count", "sum")])
        found = found.rename_columns(["bidder", "bid_count"])
    assert found.column_names == expected.column_names
    assert rows(found) == rows(expected)
    assert len(found)


@pytest.mark.parametrize("name", TITLES)
def test_answers(session: SparkSession, name: str, events: Path, tmp_path: Path) -> None:
    check(name, result(session, name, events, tmp_path), events)


@pytest.mark.slow
@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize(("hosts", "batch_rows"), [(1, 100_000), (3, 700)])
def test_answers_do_not_depend_on_hosts_and_batches(
    session: SparkSession, name: str, events: Path, tmp_path: Path, hosts: int, batch_rows: int
) -> None:
    check(name, result(session, name, events, tmp_path, hosts, batch_rows), events)


@pytest.mark.slow
@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_on_odd_events(session: SparkSession, name: str, seed: int, tmp_path: Path) -> None:
    events = odd_events(tmp_path / "odd", seed)
    check(name, result(session, name, events, tmp_path, 2, 97), events)


def moving(query: ps.FlowQuery, epoch: int) -> None:
    """Add a host to each step in one epoch, remove it in the next."""
    try:
        for step in query.placements():
            query.scale(step, 1 + epoch % 2)
    except ps.SettingError:
        # The query may end at any time.
        if query.is_active:
            raise


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TITLES if name not in STATELESS])
def test_answers_do_not_depend_on_scaling(
    session: SparkSession, name: str, events: Path, tmp_path: Path
) -> None:
    check(name, result(session, name, events, tmp_path, 2, 700, moving), events)


class Upheaval:
    """Moves slots after every epoch, and kills a host once."""

    def __init__(self) -> None:
        self.killed: str | None = None

    def __call__(self, query: ps.FlowQuery, epoch: int) -> None:
        try:
            for step in query.placements():
                hosts = [host for host in query.status.hosts if host.startswith(f"{step}/")]
                if hosts:
                    query.move(step, range(epoch % 3, 64, 2), to=hosts[epoch % len(hosts)])
            if epoch >= 1 and self.killed is None:
                self.killed, pid = sorted(query.status.hosts.items())[epoch % 2]
                os.kill(pid, signal.SIGKILL)
        except ps.SettingError:
            if query.is_active:
                raise


@pytest.mark.parametrize(
    ("name", "seed", "count", "batch_rows", "hosts"),
    [
        ("q4", 11, 6_000, 900, 3),
        ("q7", 12, 8_000, 1_000, 2),
        ("q8", 13, 9_000, 90, 2),
        ("q11", 14, 5_000, 450, 2),
        ("q16", 15, 7_000, 875, 3),
        ("q19", 16, 4_000, 600, 2),
    ],
)
def test_answers_survive_moves_and_the_death_of_a_host(
    session: SparkSession,
    tmp_path: Path,
    name: str,
    seed: int,
    count: int,
    batch_rows: int,
    hosts: int,
) -> None:
    """Each query has its own seed, size, batches and hosts."""
    events = tmp_path / "generated"
    generate(NexmarkConfig(events=count, seed=seed, rate=200, disorder_ms=seed * 50), events)
    upheaval = Upheaval()
    check(name, result(session, name, events, tmp_path, hosts, batch_rows, upheaval), events)
    assert upheaval.killed
