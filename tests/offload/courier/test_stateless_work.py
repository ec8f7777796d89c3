"""Stateless steps with burst workers: couriers' reports on them, and their pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.reflex import Reflex
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from penstock.wire.report import Seen
from tests.offload.in_process import WELL, Chances, helped
from tests.trials.cluster import SETTINGS, MiniCluster, cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(60)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = AggregatePlan(SCHEMA, ["k"], {"total": ps.sum("v")})
RATE = 2_000.0
PACED = replace(
    SETTINGS, faults=(Fault("courier.work", Pace(RATE), where={"step": "odd"}, hits=()),)
)


def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 1))


def next_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, SCHEMA.field("v"), pc.add(batch.column("v"), 1))


def mapped(function: Callable[..., Any], schema: pa.Schema = SCHEMA) -> MapStep:
    return MapStep(function.__name__, function, schema, schema)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


MAPS = FlowPlan((SourcePlan(SCHEMA),), (mapped(odd), mapped(next_one)))
BEHIND = FlowPlan((SourcePlan(SCHEMA),), (KeyedStep("sums", 4, SUMS), mapped(same, SUMS.output)))
BEFORE = FlowPlan((SourcePlan(SCHEMA),), (mapped(odd), KeyedStep("sums", 4, SUMS)))


def rows(count: int) -> list[Row]:
    return [{"k": n % 7, "v": n} for n in range(count)]


def timing(*segments: str, offload: Offload | None = None, text: str | None = None) -> Any:
    """Plans that make couriers time these segments, and optionally offload rows of the first."""
    maps = () if offload is None else ((segments[0], offload),)

    def changed(plan: EpochPlan) -> EpochPlan:
        return replace(plan, timed=segments, map_offloads=maps, reach=text)

    return changed


@contextmanager
def shared(
    store: Path, offload: Offload, chances: Chances = WELL, settings: Settings = SETTINGS
) -> Iterator[MiniCluster]:
    """A cluster whose couriers send rows of the stateless steps to burst workers."""
    with helped(MAPS, chances) as by:
        plans = timing("next_one", offload=offload, text=by.text)
        with cluster(MAPS, str(store), settings=settings, helped=plans) as on:
            yield on


def seen(on: MiniCluster) -> list[Seen]:
    return on.registry.seen()


def test_segments_that_are_not_timed_are_not_reported(tmp_path: Path) -> None:
    with cluster(MAPS, str(tmp_path)) as on:
        on.run([rows(50)])
        assert [task.maps for task in seen(on)] == [{}]


def test_rows_and_useful_time_are_reported_by_segment_and_partition(tmp_path: Path) -> None:
    with cluster(MAPS, str(tmp_path / "plain")) as plain:
        plain.run([rows(50), rows(20), []])
        expected = plain.sink[0]
    with cluster(MAPS, str(tmp_path / "timed"), helped=timing("next_one")) as on:
        on.run([rows(50), rows(20), []])
        works = [task.maps["next_one"] for task in seen(on)]
        assert [(work.rows, work.done) for work in works] == [(50, 50), (20, 20), (0, 0)]
        assert all(0 <= work.useful_ms < 1_000 for work in works)
        assert on.sink[0] == expected


def test_a_courier_keeps_to_its_pace(tmp_path: Path) -> None:
    """All of that time counts as useful."""
    with cluster(MAPS, str(tmp_path), settings=PACED, helped=timing("next_one")) as on:
        began = time.monotonic()
        on.run([rows(600), rows(300)])
        assert time.monotonic() - began >= 600 / RATE
        useful_ms = [task.maps["next_one"].useful_ms for task in seen(on)]
        assert useful_ms == pytest.approx([1000 * 600 / RATE, 1000 * 300 / RATE], rel=0.3)
        assert useful_ms[0] >= 1000 * 600 / RATE


def test_the_pace_is_also_kept_without_reports(tmp_path: Path) -> None:
    with cluster(MAPS, str(tmp_path), settings=PACED) as on:
        began = time.monotonic()
        on.run([rows(400)])
        assert time.monotonic() - began >= 400 / RATE
        assert seen(on)[0].maps == {}


def test_steps_behind_a_keyed_one_are_reported_too(tmp_path: Path) -> None:
    """They are in a second report, since the first does not wait for hosts."""
    reports: list[list[Seen]] = []
    with cluster(BEHIND, str(tmp_path), helped=timing("same")) as on:
        take = on.registry.actions["report"]

        def report(facts: dict[str, Any]) -> object:
            taken = take(facts)
            reports.append(on.registry.seen())
            return taken

        on.registry.actions["report"] = report
        on.run([rows(60)])
        assert [task.maps["same"].rows for report in reports for task in report] == [0, 7]
        assert [int(task.loads["sums"].sum()) for report in reports for task in report] == [7, 7]


def test_work_of_burst_workers_does_not_count_for_the_courier(tmp_path: Path) -> None:
    offload = Offload(np.array([0.75, 0.0]), 4, 10_000)
    with shared(tmp_path, offload) as on:
        on.run([rows(400), rows(400)])
        works = [task.maps["next_one"] for task in seen(on)]
        assert [(work.rows, work.done) for work in works] == [(400, 100), (400, 400)]
        [(carried,), ()] = [task.offloaded for task in seen(on)]
        assert (carried.rows, carried.returned, carried.invocations) == (300, 0, 2)


def test_rows_without_an_answer_count_for_the_courier(tmp_path: Path) -> None:
    offload = Offload(np.array([0.75]), 4, 10_000)
    with shared(tmp_path, offload, {"fail": 1}, PACED) as on:
        on.run([rows(400)])
        [work] = [task.maps["next_one"] for task in seen(on)]
        assert (work.rows, work.done) == (400, 400)
        assert work.useful_ms >= 1000 * 400 / RATE


def test_each_courier_uses_its_number_of_burst_workers(tmp_path: Path) -> None:
    offload = Offload(np.array([1.0]), 6, 10_000, per_courier=(5, 1))
    with shared(tmp_path, offload) as on:
        on.run([rows(400), rows(40)])
        assert [task.offloaded[0].invocations for task in seen(on)] == [5, 1]


def test_a_courier_with_too_much_turns_to_burst_workers_by_itself(tmp_path: Path) -> None:
    """The plan has no share for burst workers, but a limit of rows for couriers."""
    reflex = Reflex(limit=400.0, room=200.0, each=100.0, merge=0.0, workers=8)
    offload = Offload(np.zeros(2), 1, 10_000, reflex=reflex)
    with shared(tmp_path, offload) as on:
        on.run([rows(150), rows(500)])
        works = [task.maps["next_one"] for task in seen(on)]
        assert [(work.rows, work.done) for work in works] == [(150, 150), (500, 100)]
        assert [task.offloaded[0].invocations for task in seen(on) if task.offloaded] == [4]


@pytest.mark.parametrize("reflex", [None, Reflex(40.0, 20.0, 10.0, 0.0, 8)])
def test_a_courier_without_a_burst_worker_keeps_its_rows(
    tmp_path: Path, reflex: Reflex | None
) -> None:
    """There are fewer burst workers than couriers: it would only be refused."""
    offload = Offload(np.array([0.75]), 1, 10_000, per_courier=(0, 1), reflex=reflex)
    with shared(tmp_path, offload) as on:
        on.run([rows(400), rows(400)])
        done = [task.maps["next_one"].done for task in seen(on)]
        assert done[0] == 400
        assert done[1] <= 100


def test_a_courier_without_a_burst_worker_sends_all_rows_to_hosts(tmp_path: Path) -> None:
    offload = Offload(np.full(4, 0.75), 1, 10_000, per_courier=(0, 1))

    def changed(plan: EpochPlan) -> EpochPlan:
        steps = tuple(replace(routes, offload=offload) for routes in plan.steps)
        return replace(plan, steps=steps, reach=by.text)

    with cluster(BEFORE, str(tmp_path / "alone")) as on:
        on.run([rows(400), rows(400)])
        alone = on.output(0)
    with helped(BEFORE, WELL) as by, cluster(BEFORE, str(tmp_path), helped=changed) as on:
        on.run([rows(400), rows(400)])
        carried = [sum(entry.rows for entry in task.offloaded) for task in seen(on)]
        assert carried[0] == 0
        assert carried[1] > 200
        assert on.output(0) == alone
