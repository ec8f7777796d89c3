"""Hosts with little staging memory: couriers wait for each other without deadlock, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import HostLostError, MemoryLimitError
from penstock.faults import Fault, armed
from penstock.host.server import HostServer
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.aggregate.aggregates import max as most_of
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.trials.cluster import SETTINGS, MiniCluster, cluster
from tests.trials.plain_rows import Row
from tests.trials.trial import RUNS, Mishap

SCHEMA = pa.schema([("user", pa.int64()), ("text", pa.string())])
MB = 1 << 20


class Counted(KeyedProcessor):
    """Counts the rows of a key."""

    output_schema = "user long, rows long"

    def init(self, handle: Any) -> None:
        self.rows = handle.get_value_state("rows", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        (before,) = self.rows.get() or (0,)
        self.rows.update((before + sum(1 for _ in rows),))
        yield (key[0], self.rows.get().n)


COUNT = ProcessPlan(SCHEMA, ["user"], Counted())
AGAIN = AggregatePlan(COUNT.output, ["user"], {"rows": most_of("rows")})
FLOW = FlowPlan(
    (SourcePlan(SCHEMA),), (KeyedStep("count", 16, COUNT), KeyedStep("again", 16, AGAIN))
)
PARTITIONS, USERS, EACH = 6, 24, 2
"""Rows of each user in each partition."""


def rows(size: int) -> list[list[Row]]:
    """Rows by partition, with texts of `size` bytes."""
    text = "x" * size
    users = [{"user": user, "text": text} for user in range(USERS)]
    return [users * EACH for _ in range(PARTITIONS)]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Most bytes that each host has held."""
    most: dict[int, int] = {}
    has_room = HostServer._has_room

    def noting(self: HostServer, *args: Any) -> bool:
        room = has_room(self, *args)
        most[id(self)] = max(most.get(id(self), 0), self._staging._total)
        return room

    monkeypatch.setattr(HostServer, "_has_room", noting)
    return most.values()  # type: ignore[return-value]


def run(on: MiniCluster, parts: list[list[Row]]) -> None:
    """Run an epoch with its rows in many batches, each with rows for all hosts."""
    on.now_ms += 1000
    on.batches = 12
    on.run(parts)


def totals(on: MiniCluster, epoch: int) -> set[tuple[Any, ...]]:
    return set(on.output(epoch))


@pytest.mark.parametrize("hosts", [1, 3])
def test_couriers_wait_for_each_other_and_never_in_a_circle(
    tmp_path: Path, staged: list[int], hosts: int
) -> None:
    parts = rows(size=MB // 8)
    each = USERS * EACH * MB // 8 // hosts
    little = replace(SETTINGS, host_staged_mb=2 * each / MB, exchange_timeout_ms=60_000)
    with cluster(FLOW, str(tmp_path), hosts=hosts, settings=little) as on:
        for _ in range(2):
            run(on, parts)
        assert on.tasks.attempts == 2 * PARTITIONS, "nobody was given up"
        assert totals(on, 1) == {(user, 2 * PARTITIONS * EACH) for user in range(USERS)}
    assert max(staged) > each, "more than one partition was staged"
    # The budget, a batch of each channel, and rows that late tasks with the lowest numbers may still
    # send: about half of all rows.
    assert max(staged) < 0.9 * PARTITIONS * each, "nobody was made to wait"


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_partition_that_is_too_large_fails_at_once(tmp_path: Path, hosts: int) -> None:
    """The error says what to set; no host dies, and the epoch is not tried again."""
    tight = replace(SETTINGS, host_staged_mb=1, exchange_timeout_ms=60_000)
    with cluster(FLOW, str(tmp_path), hosts=hosts, settings=tight) as on:
        run(on, rows(size=10))
        with pytest.raises(MemoryLimitError, match="more than the 1\\.0 MB that it") as failure:
            run(on, rows(size=MB))
        for setting in ("maxOffsetsPerTrigger", "host_staged_mb", "spark.executor.memoryOverhead"):
            assert setting in failure.value.hint
        assert not on.deaths
        assert on.tasks.attempts <= 2 * PARTITIONS
        on.restart()
        run(on, rows(size=20))
        assert totals(on, 1) == {(user, 2 * PARTITIONS * EACH) for user in range(USERS)}


@pytest.mark.parametrize("one_host", [False, True])
def test_a_host_without_memory_says_so(tmp_path: Path, one_host: bool) -> None:
    with cluster(replace(FLOW, one_host=one_host), str(tmp_path)) as on:
        run(on, rows(size=10))
        full = Fault("host.channel", MemoryError)
        with (
            armed(full),
            pytest.raises(MemoryLimitError, match="does not have enough memory") as failure,
        ):
            run(on, rows(size=10))
        assert "spark.executor.pyspark.memory" in failure.value.hint
        assert not on.deaths
        on.restart()
        run(on, rows(size=10))
        assert totals(on, 1) == {(user, 2 * PARTITIONS * EACH) for user in range(USERS)}


def test_hosts_that_die_in_every_run_may_lack_memory(tmp_path: Path) -> None:
    with cluster(FLOW, str(tmp_path)) as on:
        run(on, rows(size=10))
        dying = Mishap("host.channel", "die").fault(on)
        with (
            armed(replace(dying, hits=(), where={"partition": 0})),
            pytest.raises(
                HostLostError, match=f"each of the {RUNS} runs of epoch 1 lost"
            ) as failure,
        ):
            run(on, rows(size=10))
        assert "for lack of memory" in failure.value.hint
        assert "maxOffsetsPerTrigger" in failure.value.hint
