"""A process that runs a flow and takes commands as lines on its stdin."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.query import FlowQuery


def answer_until_closed(spark: SparkSession, query: FlowQuery, **names: Any) -> None:
    """Answer Python expressions about `query`, `spark` and these names, with a line of JSON each, until stdin
    is closed. Then stop everything, and print the final state of the query."""
    for line in sys.stdin:
        try:
            answer = eval(line, {"query": query, "spark": spark} | names)
        except Exception as refused:  # a refused command, or a lost host
            answer = repr(refused)
        print(json.dumps(answer, default=repr), flush=True)
    query.stop()
    spark.stop()
    print(json.dumps(query.status.state), flush=True)
