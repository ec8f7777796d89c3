"""A checkpoint of an earlier release, whose ids of steps counted all steps, is continued after a `select` was
added.

`checkpoint-old-step-ids.tar.gz` was written by the last release before steps had names, in both modes, by
`flow` without `added` (its times were shifted to the past). The one in micro-batches was stopped while Spark
committed epoch 3.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.state.store.store import Store
from tests.spark.test_live import until, wanted

ROWS, KEYS = 150_000, 40
PACKED = Path(__file__).parent.parent / "data" / "checkpoint-old-step-ids.tar.gz"


def flow(added: bool, **name: Any) -> ps.Flow:
    """How many rows each key has had; `name` is that of the first keyed step."""
    rows = ps.flow(ps.rate(1_000, keys=KEYS, rows=ROWS)).select("key", "value")
    if added:
        rows = rows.select("key").map_batches(lambda batch: batch)
    counts = rows.key_by("key", slots=4).aggregate(n=ps.count(), **name)
    return counts.select("key", "n").key_by("key", slots=4).aggregate(most=ps.max("n"))


@pytest.mark.parametrize(
    ("mode", "name", "steps", "options"),
    [
        ("micro_batch", {}, ["aggregate-1", "aggregate-2"], {}),
        (
            "live",
            {"name": "clicks"},
            ["clicks", "aggregate-2"],
            {"mode": "live", "checkpoint_every": "200ms"},
        ),
    ],
)
def test_a_checkpoint_is_continued_after_a_select_was_added(
    spark: SparkSession,
    tmp_path: Path,
    mode: str,
    name: dict[str, str],
    steps: list[str],
    options: dict[str, Any],
) -> None:
    with tarfile.open(PACKED) as archive:
        archive.extractall(tmp_path, filter="data")
    store = Store(str(tmp_path / mode / "penstock"))
    before, expected, sink = store.epochs()[-1], wanted(ROWS, KEYS), ps.collect()
    query = flow(added=True, **name).start(
        sink, checkpoint=str(tmp_path / mode), hosts={steps[0]: 2, steps[1]: 1}, **options
    )
    try:
        until(query, lambda: {row["key"]: row["most"] for row in sink.rows()} == expected)
        until(query, lambda: max(store.epochs()) > before)
        assert list(query.placements()) == steps
    finally:
        query.stop()
    assert list(store.chain(max(store.epochs())).manifest.routes) == steps
