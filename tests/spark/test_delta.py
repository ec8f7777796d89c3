"""The real Delta: an epoch that it has already is not written again, and the query goes on.

Run by `make test-delta`, which brings Delta and a Spark that it works with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.sources import numbers, write_files
from tests.spark.test_flow import sums

pytest.importorskip("delta", reason="Delta is not installed: see make test-delta")

DRIVER = """
import json, sys
from importlib.metadata import version
from pathlib import Path
import penstock as ps
import pyspark
from penstock.faults import Fault, InjectedFault

folder = Path(sys.argv[1])
spark_version = ".".join(pyspark.__version__.split(".")[:2])
spark = ps.session(cores=6, conf={
    "spark.jars.packages": f"io.delta:delta-spark_{spark_version}_2.13:{version('delta-spark')}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
})
faults = {
    "written": Fault("driver.written", where={"epoch": 1}),
    "sealed": Fault("driver.sealed", where={"epoch": 2}),
    "committed": Fault("driver.committed", where={"epoch": 3}),
    "host": Fault("host.sealed", "kill", {"epoch": 4, "run": 0}),
    "nothing": None,
}
runs = {}
for name, fault in faults.items():
    source = (spark.readStream.schema("k long, v long, x double")
        .option("maxFilesPerTrigger", 1).parquet(str(folder / "in")))
    flow = ps.flow(source).key_by("k", slots=8).aggregate(total=ps.sum("v"), n=ps.count())
    query = flow.start(ps.to("delta", path=str(folder / "table")), checkpoint=str(folder / "ck"),
        trigger="available_now", settings=ps.Settings(faults=(fault,) if fault else ()), hosts=2)
    try:
        query.await_termination(120)
    except InjectedFault:
        pass
    runs[name] = [(p.epoch, p.runs) for p in query.progress]
rows = spark.read.format("delta").load(str(folder / "table")).collect()
print(json.dumps({"rows": [list(row) for row in rows], "runs": runs}))
spark.stop()
"""


def test_delta_takes_every_epoch_once(tmp_path: Path) -> None:
    """The driver dies after the table was written, at three points; then a host does."""
    tables = numbers(files=6, rows=100, keys=20)
    write_files(tmp_path / "in", tables)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert [epoch for name in told["runs"] for epoch, _ in told["runs"][name]] == [0, 1, 2, 3, 4, 5]
    assert [runs for _, runs in told["runs"]["host"]] == [1, 2, 1]
    rows = sorted(tuple(row) for row in told["rows"])
    expected = [
        (k, *row)
        for n in range(6)
        for k, row in sums(tables[: n + 1]).items()
        if k in set(tables[n]["k"].to_pylist())
    ]
    assert rows == sorted(expected)
