"""A flow in micro-batches, with Spark's connector, in its own process, which can be killed. Lines on its
stdin control it.

    python -m tests.kafka.micro_process SERVERS INPUT OUTPUT CHECKPOINT DELIVERY [LATENCY [MASTER]]

OUTPUT is a topic. Each line is a Python expression about `query`; its value is printed as JSON.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import penstock as ps
from penstock.spark.query import FlowQuery
from tests.testing.answering import answer_until_closed


def start(
    servers: str, source: str, output: str, checkpoint: str, delivery: Any, latency: str = "1s"
) -> FlowQuery:
    """Totals of each user, from one topic to another."""
    orders = ps.kafka(servers, source, schema="user string, amount long, at timestamp")
    return (
        ps.flow(orders)
        .key_by("user", slots=16)
        .aggregate(n=ps.count(), total=ps.sum("amount"))
        .sla(latency=latency)
        .start(
            ps.to("kafka", servers=servers, topic=output, key="user"),
            checkpoint=checkpoint,
            hosts=2,
            delivery=delivery,
            settings=ps.Settings(heartbeat_ms=200, host_lost_ms=4_000),
        )
    )


def main() -> None:
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("penstock").setLevel(logging.INFO)
    if len(sys.argv) > 7:
        conf = {"spark.executor.memory": "512m"}
        spark = ps.session(master=sys.argv.pop(), kafka=True, conf=conf)
    else:
        spark = ps.session(cores=8, kafka=True)
    query = start(*sys.argv[1:])
    answer_until_closed(spark, query)


if __name__ == "__main__":
    main()
