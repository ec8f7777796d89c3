"""Stateless steps alone, with burst workers: every row comes once and in its place, whatever fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.control.elastic import Elastic
from penstock.driver.progress import EpochProgress
from penstock.faults import FAULT_POINTS, Armed, Fault, armed
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.policy.flow import NO_ANSWER
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan, MapStep, SourcePlan
from penstock.testing import Pace
from tests.offload.in_process import ANYHOW, KeptCluster, helped
from tests.trials.cluster import SETTINGS, Partitions, cluster
from tests.trials.plain_rows import Row
from tests.trials.trial import Mishap, hows

SCHEMA = pa.schema([("n", pa.int64()), ("price", pa.int64())])
POINTS = [name for name in FAULT_POINTS if name.startswith(("courier.off", "driver.", "store."))]
SKIPPED = ("driver.layout", "driver.clean")
"""Fault points of upkeep, which a flow without state does not pass."""


def dear(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater(batch.column("price"), 2))


def in_cents(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Each row twice, side by side."""
    twice = batch.take(pa.array([n // 2 for n in range(2 * batch.num_rows)], pa.int64()))
    return [twice.set_column(1, SCHEMA.field("price"), pc.multiply(twice.column("price"), 100))]


MAPS = FlowPlan(
    (SourcePlan(SCHEMA),),
    (MapStep("dear", dear, SCHEMA, SCHEMA), MapStep("in_cents", in_cents, SCHEMA, SCHEMA)),
)


def some_rows(pick: random.Random, *counts: int) -> list[list[Row]]:
    return [
        [{"n": pick.randrange(1 << 20), "price": pick.randrange(10)} for _ in range(count)]
        for count in counts
    ]


def expected(parts: Partitions) -> list[Row]:
    """The expected rows by plain lists: those of each partition in their order."""
    return [
        {"n": row["n"], "price": 100 * row["price"]}
        for part in parts
        for row in part
        if row["price"] > 2
        for _ in range(2)
    ]


def _fired(met: Armed) -> Callable[[], int]:
    return lambda: len(met.fired)


@pytest.mark.parametrize("point", [name for name in POINTS if name not in SKIPPED])
def test_a_fault_at_each_point(tmp_path: Path, point: str) -> None:
    pick = random.Random(point)
    most = Offload(np.array([0.6]), workers=4, deadline_ms=150)
    with helped(MAPS, ANYHOW, seed=len(point)) as by, cluster(MAPS, str(tmp_path)) as on:
        on.helped = lambda plan: replace(
            plan, reach=by.text, map_offloads=(("in_cents", most),), timed=("in_cents",)
        )
        for how in hows(point):
            for mishap in (Mishap(point, how), None):
                parts = some_rows(pick, 60, 0, 35)
                faults = [] if mishap is None else [mishap.fault(on)]
                with armed(*faults) as met:
                    on.run_through(parts, _fired(met))
                assert on.sink[on.epoch - 1] == expected(parts)
                assert len(met.fired) == len(faults), "the point was not passed"
                assert [task.maps["in_cents"].rows for task in on.registry.seen()] == [60, 0, 35]


def test_any_story_gives_what_lists_give(tmp_path: Path) -> None:
    """Several mishaps per epoch, burst workers of all kinds, sinks that read twice."""
    for seed in range(4):
        pick = random.Random(seed)
        with (
            helped(MAPS, ANYHOW, seed, deadline_ms=100) as by,
            cluster(MAPS, str(tmp_path / str(seed)), helped=by) as on,
        ):
            for _ in range(5):
                on.reads = pick.randint(1, 2)
                parts = some_rows(pick, *(pick.choice((0, 1, 7, 80)) for _ in range(3)))
                points = pick.sample([name for name in POINTS if name not in SKIPPED], 2)
                mishaps = [
                    Mishap(name, pick.choice(hows(name)), pick.randint(1, 3)) for name in points
                ]
                with armed(*(mishap.fault(on) for mishap in mishaps)) as met:
                    on.run_through(parts, _fired(met))
                assert on.sink[on.epoch - 1] == expected(parts)
        assert len(by.workers.did) > 3


# -- with control


RATE = 1_000.0
"""Records per second that a courier processes."""
PACED = Fault("courier.work", Pace(RATE), where={"step": "dear"}, hits=())
EPOCH_MS = 100
STABLE, BURST = 60, 250
"""Rows per partition and epoch: 60 % and 250 % of its courier's capacity."""


class Controlled(KeptCluster):
    """A flow without keyed steps whose control has burst workers."""

    def __init__(self, store: Path) -> None:
        settings = replace(SETTINGS, faults=(PACED,))
        elastic = Elastic(functions=LocalFunctions(at_most=8))
        self._pick = random.Random(7)
        super().__init__(MAPS, str(store), elastic, settings=settings)

    def pass_epochs(self, count: int, rows: Sequence[int]) -> list[EpochProgress]:
        passed = []
        for _ in range(count):
            parts = some_rows(self._pick, *rows)
            self.now_ms += EPOCH_MS
            passed.append(self.run(parts))
            assert self.sink[self.epoch - 1] == expected(parts)
            self.settle()
        return passed


def test_a_burst_is_seen_carried_and_let_go_of(tmp_path: Path) -> None:
    with Controlled(tmp_path) as on:
        calm = on.pass_epochs(12, (STABLE, STABLE))
        assert sum(one.functions.rows for one in calm) == 0
        couriers = calm[-1].couriers
        assert [one.courier for one in couriers] == ["in_cents/0", "in_cents/1"]
        assert [one.rows for one in couriers] == [STABLE, STABLE]
        during = on.pass_epochs(10, (BURST, BURST))
        assert all(one.functions.rows > BURST for one in during[3:])
        assert all(one.functions.returned == 0 for one in during)
        assert max(one.useful_ms for one in during[-1].couriers) < 0.5 * 1000 * BURST / RATE
        assert on.offload_facts()[0]["functions"] > 0
        on.pass_epochs(25, (STABLE, STABLE))
        assert on.offload_facts()[-1]["functions"] == 0
        assert on.pass_epochs(1, (STABLE, STABLE))[0].functions.rows == 0
        assert on.keeper.used.invocations > 0


@pytest.mark.parametrize("does", ["fail", "throttle", "garbage", "strange", "hang"])
def test_burst_workers_that_give_no_answers_are_done_without(tmp_path: Path, does: str) -> None:
    with Controlled(tmp_path) as on:
        on.pass_epochs(12, (STABLE, STABLE))
        on.pass_epochs(5, (BURST, BURST))
        assert on.plans[-1].reach is not None
        on.become({does: 1})
        # those that hang cost one deadline, and are not waited for again
        failed = on.pass_epochs(1 if does == "hang" else 2, (BURST, BURST))
        assert all(one.functions.returned == one.functions.rows > 0 for one in failed)
        assert on.pass_epochs(1, (BURST, BURST))[0].functions.rows == 0
        assert NO_ANSWER in on.offload_facts()[-1]["reasons"]
        assert len(on.kept) == 2, "no other workers were started in their place"


def test_burst_workers_that_fail_now_and_then_still_help(tmp_path: Path) -> None:
    with Controlled(tmp_path) as on:
        on.pass_epochs(12, (STABLE, STABLE))
        on.become({"answer": 18, "fail": 1, "throttle": 1, "again": 1})
        during = on.pass_epochs(12, (BURST, BURST))
        functions = [one.functions for one in during[3:]]
        assert sum(one.returned for one in functions) > 0
        assert sum(one.rows - one.returned for one in functions) > 6 * BURST
        assert len(on.kept) == 1


def test_a_driver_that_starts_again_has_burst_workers_again(tmp_path: Path) -> None:
    with Controlled(tmp_path) as on:
        on.pass_epochs(12, (STABLE, STABLE))
        on.pass_epochs(4, (BURST, BURST))
        on.restart()
        on.pass_epochs(8, (STABLE, STABLE))
        last = on.pass_epochs(6, (BURST, BURST))[-1]
        assert last.functions.rows > 0
