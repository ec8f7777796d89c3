"""Couriers' reports of an epoch, with the hosts and the registry of a real query."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.faults import Fault, armed
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.process.step import ProcessPlan
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.state.keys.codec import slots_of
from penstock.wire.report import Seen
from tests.operators.processors import SCHEMA, Summed
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(60)

SLOTS = 8
FIRST = ProcessPlan(SCHEMA, ["user"], Summed())
# It counts the input numbers, because totals depend on which task is first.
SECOND = AggregatePlan(FIRST.output, ["user"], {"kinds": ps.approx_distinct("last")})
FLOW = FlowPlan(
    (SourcePlan(SCHEMA),), (KeyedStep("sum", SLOTS, FIRST), KeyedStep("about", SLOTS, SECOND))
)
ANN, OTHERS = 12, 5
PARTS: list[list[Row]] = [
    [{"user": "ann", "n": n} for n in range(ANN)],
    [{"user": f"u{n}", "n": n} for n in range(OTHERS)] + [{"user": "ann", "n": 100}],
]


def slot_of(user: str) -> int:
    row = pa.RecordBatch.from_pylist([{"user": user, "n": 0}], SCHEMA)
    return int(slots_of(FIRST.codec.encode(row).hashes, SLOTS)[0])


def ordering(on: MiniCluster, **options: Any) -> None:
    """Set these options for all steps in later plans."""

    def changed(plan: EpochPlan) -> EpochPlan:
        return replace(plan, steps=tuple(replace(step, **options) for step in plan.steps))

    on.helped = changed


def loads(seen: list[Seen], step: str) -> list[int]:
    total = np.sum([report.loads[step] for report in seen], axis=0)
    return [int(count) for count in total]


def wanted() -> list[int]:
    users = [row["user"] for part in PARTS for row in part]
    counts = Counter(map(slot_of, users))
    return [counts[slot] for slot in range(SLOTS)]


@pytest.mark.parametrize("hosts", [1, 3])
def test_all_steps_are_counted_by_slot(tmp_path: Path, hosts: int) -> None:
    with cluster(FLOW, str(tmp_path), hosts=hosts) as on:
        on.run(PARTS)
        seen = on.registry.seen()
        assert [report.rows for report in seen] == [ANN, OTHERS + 1]
        # The second step gets every output row of the first.
        assert loads(seen, "sum") == loads(seen, "about") == wanted()
        assert all(report.hot == () for report in seen)
        on.run([[], []])
        assert sum(loads(on.registry.seen(), "sum")) == 0


def test_couriers_report_while_the_last_hosts_work(tmp_path: Path) -> None:
    """The control loop examines an epoch before it is done, so a report must not wait for answers."""
    with cluster(FLOW, str(tmp_path)) as on:

        def wait_for_reports(where: object) -> None:
            deadline = time.monotonic() + 10
            while len(on.registry.seen()) < len(PARTS):
                assert time.monotonic() < deadline, "a courier waits for its hosts"
                time.sleep(0.001)

        with armed(Fault("host.channel", wait_for_reports, {"step": "about"}, hits=())) as faults:
            on.run(PARTS)
        assert len(faults.fired) == 4
        assert loads(on.registry.seen(), "about") == wanted()


@pytest.mark.parametrize("point", ["courier.closed", "courier.sent"])
@pytest.mark.parametrize("step", ["sum", "about"])
def test_a_task_that_is_tried_again_counts_once(tmp_path: Path, point: str, step: str) -> None:
    """A task that died after its report counts once, too: the last report of a partition is kept."""
    with cluster(FLOW, str(tmp_path)) as on:
        with armed(Fault(point, where={"step": step, "partition": 0})) as faults:
            on.run(PARTS)
        assert len(faults.fired) == 1
        seen = on.registry.seen()
        assert loads(seen, "sum") == loads(seen, "about") == wanted()
        assert sum(report.rows for report in seen) == ANN + OTHERS + 1


def test_keys_of_watched_slots_are_named(tmp_path: Path) -> None:
    with cluster(FLOW, str(tmp_path)) as on:
        ordering(on, watched=(slot_of("ann"),))
        on.run(PARTS)
        counts = [
            (hot.step, hot.count)
            for report in on.registry.seen()
            for hot in report.hot
            if hot.key == "user=ann"
        ]
        assert counts == [("sum", ANN), ("about", ANN), ("sum", 1), ("about", 1)]
        assert {hot.slot for r in on.registry.seen() for hot in r.hot} == {slot_of("ann")}


def test_in_two_stages_a_key_is_one_record_of_a_task(tmp_path: Path) -> None:
    with cluster(FLOW, str(tmp_path / "one")) as on:
        on.run(PARTS)
        one = on.output(0)
    with cluster(FLOW, str(tmp_path / "two")) as on:
        ordering(on, two_stage=True)
        on.run(PARTS)
        seen = on.registry.seen()
        assert loads(seen, "sum") == wanted()
        assert [int(report.loads["about"].sum()) for report in seen] == [1, OTHERS + 1]
        assert on.output(0) == one
