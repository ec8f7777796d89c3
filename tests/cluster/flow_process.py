"""A flow on a cluster, in its own driver process, which can be killed. Lines on its stdin control it.

    python -m tests.cluster.flow_process MASTER FOLDER OPTIONS

OPTIONS is a `Start` as JSON. Each line is a Python expression about `query` and `spark`; its value is printed
as a line of JSON. The flow writes to FOLDER/out and has its checkpoint in FOLDER/checkpoint.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock import codec
from penstock.faults import Fault, arm
from penstock.sim.shapes import shape
from penstock.spark.query import FlowQuery
from penstock.testing import Pace, Uncombined
from tests.cluster.strikes import Strike, Whom
from tests.testing.answering import answer_until_closed

KEYS, PARTITIONS = 97, 2
BATCH = 500
"""Rows per micro-batch."""
RATE = 2_000
"""Rows per second of a live flow."""


@dataclass(frozen=True)
class Trap:
    """A `Strike` at a fault point, as JSON."""

    point: str
    whom: Whom = "executor"
    number: int = signal.SIGKILL
    """The signal."""
    where: dict[str, Any] = field(default_factory=dict)
    hits: tuple[int, ...] = (1,)
    times: int = 1

    def fault(self, folder: str) -> Fault:
        strike = Strike(self.whom, self.number, f"{folder}/struck", self.times)
        return Fault(self.point, strike, self.where, self.hits)


@dataclass(frozen=True)
class Start:
    """Options of a flow's start."""

    live: bool = False
    hosts: int = 2
    couriers: int = 2
    """Couriers of a live flow."""
    load: str = f"steady({RATE})"
    """Rows per second of a live flow, as a shape over time."""
    at_most: int = 0
    """Most hosts of a live flow that scales by itself; 0: autoscaling is off."""
    host_rate: float = 1_000
    """Rows per second that a host processes, in a flow with autoscaling."""
    traps: tuple[Trap, ...] = ()
    migration: str = "lazy"
    host_lost_ms: int = 3_000
    driver_lost_ms: int = 10_000
    conf: dict[str, str] = field(default_factory=dict)


def start(spark: SparkSession, folder: str, wanted: Start) -> FlowQuery:
    faults = tuple(trap.fault(folder) for trap in wanted.traps)
    arm(faults)  # For the driver's own points.
    if wanted.at_most:
        slow = Fault("host.work", Pace(wanted.host_rate), hits=())
        faults = (*faults, slow, Fault("courier.sender", Uncombined(), hits=()))
    settings = ps.Settings(
        heartbeat_ms=300,
        host_lost_ms=wanted.host_lost_ms,
        driver_lost_ms=wanted.driver_lost_ms,
        faults=faults,
    )
    sink, checkpoint = ps.to("parquet", path=f"{folder}/out"), f"{folder}/checkpoint"
    if wanted.live:
        rate = ps.rate(shape(wanted.load), keys=KEYS, partitions=PARTITIONS)
        sums = ps.flow(rate).key_by("key", slots=16).aggregate(total=ps.sum("value"), n=ps.count())
        if wanted.at_most:
            sums = sums.sla(latency="500ms", window="1s").elastic(at_most=wanted.at_most)
        return sums.start(
            sink,
            checkpoint=checkpoint,
            mode="live",
            checkpoint_every="300ms",
            hosts=wanted.hosts,
            migration=wanted.migration,
            couriers=wanted.couriers,
            settings=settings,
        )
    source = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=BATCH, numPartitions=PARTITIONS, startTimestamp=0)
        .load()
        .select((F.col("value") % KEYS).alias("key"), "value")
    )
    return (
        ps.flow(source)
        .key_by("key", slots=16)
        .aggregate(total=ps.sum("value"), n=ps.count())
        .start(
            sink,
            checkpoint=checkpoint,
            trigger="100ms",
            hosts=wanted.hosts,
            migration=wanted.migration,
            settings=settings,
        )
    )


def main() -> None:
    master, folder, options = sys.argv[1:]
    wanted = codec.decode(options, Start)
    spark = ps.session(
        master=master,
        conf={"spark.executor.memory": "512m"} | wanted.conf,
    )
    query = start(spark, folder, wanted)
    answer_until_closed(spark, query)


if __name__ == "__main__":
    main()
