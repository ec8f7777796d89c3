"""A live flow in its own process, which can be killed. Lines on its stdin control it.

    python -m tests.kafka.flow_process SERVERS INPUT OUTPUT CHECKPOINT DELIVERY [POINT ...]

Each line is a Python expression about `query`; its value is printed as a line of JSON. The process that
passes POINT for the fifth time is killed.
"""

from __future__ import annotations

import sys
from typing import Any

import penstock as ps
from penstock.faults import Fault, arm
from penstock.spark.query import FlowQuery
from tests.testing.answering import answer_until_closed

FIRST, SECOND = "window-1", "aggregate-2"


def flow(servers: str, topic: str) -> ps.Flow:
    """Windows per user, and totals of the windows."""
    orders = ps.kafka(servers, topic, schema="user string, amount long, at timestamp")
    return (
        ps.flow(orders, event_time="at", delay="1s")
        .key_by("user", slots=16)
        .window(ps.tumbling("1s"))
        .aggregate(n=ps.count(), total=ps.sum("amount"))
        .key_by("user", slots=16)
        .aggregate(windows=ps.count(), n=ps.sum("n"), total=ps.sum("total"))
    )


def start(
    servers: str, source: str, output: str, checkpoint: str, delivery: Any, *points: str
) -> FlowQuery:
    faults = tuple(Fault(point, do="kill", hits=(5,)) for point in points)
    arm(faults)  # For the driver's own points.
    return flow(servers, source).start(
        ps.to("kafka", servers=servers, topic=output, key="user"),
        checkpoint=checkpoint,
        mode="live",
        checkpoint_every="300ms",
        hosts=2,
        couriers=2,
        delivery=delivery,
        settings=ps.Settings(
            heartbeat_ms=200, host_lost_ms=2_000, live_partitions_ms=500, faults=faults
        ),
    )


def main() -> None:
    spark = ps.session(cores=12)
    query = start(*sys.argv[1:])
    answer_until_closed(spark, query)


if __name__ == "__main__":
    main()
