"""A flow with its checkpoint on S3, in its own process. Lines on its stdin control it.

    python -m tests.s3.flow_process ARGUMENTS

The arguments are a `Run` as JSON. Each line is a Python expression about `query` and `again()`, which starts
the same flow again on the same checkpoint; its value is printed as a line of JSON.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import penstock as ps
from penstock import codec
from penstock.spark.query import FlowQuery
from tests.testing.answering import answer_until_closed

RATE, KEYS = 1_000, 40


@dataclass(frozen=True)
class Run:
    """One start of the flow."""

    mode: str
    checkpoint: str
    out: str
    rows: int | None
    s3a: dict[str, str]
    """Spark's settings for S3, by their names after `fs.s3a.`."""
    close: bool = False


def start(run: Run) -> FlowQuery:
    """Windows of a tenth of a second with the number of their rows."""
    options: dict[str, Any] = {"mode": "live", "checkpoint_every": "300ms", "close": run.close}
    return (
        ps.flow(ps.rate(RATE, keys=KEYS, rows=run.rows), event_time="arrival")
        .key_by("key", slots=8)
        .window(ps.tumbling("100ms"))
        .aggregate(n=ps.count())
        .start(
            ps.to("parquet", path=run.out),
            checkpoint=run.checkpoint,
            **(options if run.mode == "live" else {}),
        )
    )


def main() -> None:
    run = codec.decode(sys.argv[1], Run)
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in run.s3a.items()}
    spark = ps.session(cores=10, s3=run.mode != "live", conf=settings)
    query = start(run)
    answer_until_closed(spark, query, again=lambda: start(run))


if __name__ == "__main__":
    main()
