"""A flow's process that is told what to do by lines on its stdin."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.query import FlowQuery


def answer_until_closed(spark: SparkSession, query: FlowQuery, **names: Any) -> None:
    """Answer Python expressions about `query`, `spark` and these names, a line of JSON each, until stdin is
    closed. Then stop everything, and tell the state that the query ended in."""
    for line in sys.stdin:
        try:
            answer = eval(line, {"query": query, "spark": spark} | names)
        except Exception as refused:  # an order that is refused, a host that is gone
            answer = repr(refused)
        print(json.dumps(answer, default=repr), flush=True)
    query.stop()
    spark.stop()
    print(json.dumps(query.status.state), flush=True)
