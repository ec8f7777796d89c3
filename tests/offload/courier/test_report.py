"""Couriers' reports on rows that go to burst workers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock import codec
from penstock.errors import ProtocolError
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.report import MapWork, Offloaded, Routed, Seen, Usage
from tests.courier.test_report import ordering
from tests.offload.in_process import WELL, helped
from tests.operators.processors import SCHEMA as USERS
from tests.operators.processors import Summed
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(60)

SLOTS = 8
SCHEMA = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us"))])
SUMS = AggregatePlan(SCHEMA, ["user"], {"n": ps.sum("n")})
WINDOWS = WindowPlan(SCHEMA, ["user"], {"n": ps.sum("n")}, tumbling("10s"), "ts")


def flow_of(plan: AggregatePlan | object) -> FlowPlan:
    step = KeyedStep("sums", SLOTS, plan)  # type: ignore[arg-type]
    return FlowPlan((SourcePlan(SCHEMA, "ts", 1000),), (step,))


def parts_of(users: int, rows: int) -> list[list[Row]]:
    return [
        [{"user": (7 * n + part) % users, "n": n, "ts": 1000 + n % 5} for n in range(rows)]
        for part in range(2)
    ]


def loads(on: MiniCluster) -> list[int]:
    total = np.sum([report.loads["sums"] for report in on.registry.seen()], axis=0)
    return [int(count) for count in total]


@pytest.mark.parametrize("plan", [SUMS, WINDOWS], ids=["sums", "windows"])
@pytest.mark.parametrize(("users", "rows"), [(5_000, 3_000), (60, 3_000)])
def test_loads_are_those_without_burst_workers(
    tmp_path: Path, plan: object, users: int, rows: int
) -> None:
    """Loads are the same whether couriers combine the rows of a key or not."""
    flow, parts = flow_of(plan), parts_of(users, rows)
    with cluster(flow, str(tmp_path / "alone")) as on:
        on.run(parts)
        alone = loads(on)
        assert all(seen.offloaded == () and seen.used == Usage() for seen in on.registry.seen())
    with helped(flow, WELL) as by, cluster(flow, str(tmp_path / "helped"), helped=by) as on:
        by.chance = 1.0
        on.run(parts)
        assert np.allclose(loads(on), alone, rtol=0.15, atol=3)
        assert sum(entry.rows for seen in on.registry.seen() for entry in seen.offloaded) > rows / 3


def test_work_of_burst_workers_is_reported(tmp_path: Path) -> None:
    flow, parts = flow_of(SUMS), parts_of(100, 200)
    with helped(flow, {"throttle": 1}) as by, cluster(flow, str(tmp_path), helped=by) as on:
        by.chance = 1.0
        on.run(parts)
        offloaded = [entry for seen in on.registry.seen() for entry in seen.offloaded]
        assert [entry.segment for entry in offloaded] == ["sums", "sums"]
        assert all(
            0 < entry.rows == entry.returned <= 200 and entry.records == 0 for entry in offloaded
        )
        assert all(entry.failures == {"throttled": entry.invocations} for entry in offloaded)
        used = sum((seen.used for seen in on.registry.seen()), Usage())
        assert used.invocations == sum(entry.invocations for entry in offloaded)


def test_a_report_survives_the_wire() -> None:
    counts = {"rows": 9, "records": 3, "invocations": 2, "returned": 4, "wait_ms": 17}
    report = Seen(
        9,
        late={"sums": 1},
        loads={"sums": np.arange(3)},
        offloaded=(Offloaded("sums", failures={"timeout": 1}, **counts),),
        used=Usage(invocations=2, seconds=0.25),
        maps={"map-1": MapWork(3, 1, 0.5)},
        routed={"sums": Routed(9, combined=True)},
    )
    seen = codec.decode(codec.encode(report), Seen)
    assert seen.loads["sums"].tolist() == [0, 1, 2]
    assert replace(seen, loads={}) == replace(report, loads={})


def test_without_a_connection_couriers_do_the_rows_themselves(tmp_path: Path) -> None:
    flow, parts = flow_of(SUMS), parts_of(100, 200)
    with cluster(flow, str(tmp_path / "alone")) as on:
        on.run(parts)
        alone = on.output(0)
    with helped(flow, WELL) as by, cluster(flow, str(tmp_path / "helped"), helped=by) as on:
        by.chance, by.text = 1.0, json.dumps({"kind": "nowhere"})
        on.run(parts)
        assert on.output(0) == alone
        assert not by.workers.did
        offloaded = [entry for seen in on.registry.seen() for entry in seen.offloaded]
        assert sum(entry.returned for entry in offloaded) > 0


def test_shares_without_burst_workers_are_ignored(tmp_path: Path) -> None:
    with cluster(flow_of(SUMS), str(tmp_path)) as on:
        ordering(on, offload=Offload(np.ones(SLOTS), 2, 1000))
        on.run(parts_of(100, 200))
        assert sum(loads(on)) == 200
        assert all(seen.offloaded == () for seen in on.registry.seen())


def test_plans_that_offload_other_segments_are_refused(tmp_path: Path) -> None:
    step = KeyedStep("sums", SLOTS, ProcessPlan(USERS, ["user"], Summed()))
    with cluster(FlowPlan((SourcePlan(USERS),), (step,)), str(tmp_path)) as on:
        ordering(on, offload=Offload(np.ones(SLOTS), 2, 1000))
        with pytest.raises(ProtocolError, match="its state does not merge"):
            on.run([[{"user": "ann", "n": 1}]])
