"""AutoFlow's skewed sum: the slots of its rows, and the sums."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.model import HostId, StepId
from penstock.plan.migration import Migration
from penstock.plan.topology import Topology
from penstock.sim.skews import Hotspot
from penstock_bench.workloads.shaped import KeyedRows
from penstock_bench.workloads.skewed_sum import BidRows, flow


@pytest.mark.parametrize(("share", "hosts", "hot"), [(0.5, 3, 1), (0.8, 5, 2), (0.6, 10, 1)])
def test_the_hot_hosts_get_their_share(share: float, hosts: int, hot: int) -> None:
    content = BidRows(KeyedRows(50_000, Hotspot(share, hosts, hot), slots=64))
    names = [HostId(f"sum/{n}") for n in range(hosts)]
    topology = Topology(StepId("sum"), 64, names)
    owner = np.zeros(64, np.int64)
    for handover in topology.advance(-1, names, Migration.parse("lazy")):
        owner[list(handover.slots)] = names.index(handover.target)
    number = np.arange(40_000)
    ids, _ = content.rows(number, np.zeros_like(number))
    loads = np.bincount(owner[content.ids.slots_of(ids.to_numpy())], minlength=hosts) / 40_000
    assert loads[:hot].sum() == pytest.approx(share, abs=0.015)
    assert loads[hot:].max() < 1.4 * (1 - share) / (hosts - hot)


def test_the_flow_sums_prices(spark: SparkSession) -> None:
    number = np.arange(5000)
    content = BidRows(KeyedRows(2000, Hotspot(0.5, 3)))
    ids, price = content.rows(number, np.zeros_like(number))
    arrival = pa.array(number * 1000).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"arrival": arrival, "id": ids, "price": price})
    sink = ps.collect()
    query = flow(spark.createDataFrame(table), slots=8).start(sink, hosts=2)
    assert query.await_termination(240)
    totals = np.bincount(ids.to_numpy(), price.to_numpy(), minlength=2000)
    expected = {i: totals[i] for i in np.unique(ids.to_numpy())}
    assert {i: row["total"] for i, row in sink.latest("id").items()} == expected
