"""An executor that dies under a user's function takes output with it, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.sources import numbers, write_files
from tests.spark.test_flow import sums

DRIVER = """
import json, sys, psutil
import penstock as ps
from pathlib import Path
folder = Path(sys.argv[1])
spark = ps.session(master="local-cluster[3,1,512]", conf={"spark.executor.memory": "512m"})
jvm = spark.sparkContext._gateway.proc.pid
latest, calls, killed = {}, [], []

def executors():
    found = psutil.Process(jvm).children(recursive=True)
    return {p.pid: p for p in found if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())}

def save(df, epoch):
    calls.append(epoch)
    if epoch == 1 and not killed:
        hosts = {parent.pid for pid in query.status.hosts.values()
                 for parent in psutil.Process(pid).parents()}
        for pid, executor in executors().items():
            if pid not in hosts:
                killed.append(pid)
                executor.kill()
                executor.wait()
    merged = df.coalesce(1).collect()
    assert sorted(merged) == sorted(df.collect())
    latest.update({row["k"]: (row["total"], row["n"]) for row in merged})

source = (spark.readStream.schema("k long, v long, x double")
    .option("maxFilesPerTrigger", 2).parquet(str(folder / "in")))
flow = ps.flow(source).key_by("k", slots=8).aggregate(total=ps.sum("v"), n=ps.count())
query = flow.start(ps.foreach_batch(save), checkpoint=str(folder / "ck"), trigger="available_now")
query.await_termination(200)
runs = [p.runs for p in query.progress]
print(json.dumps({"latest": list(latest.items()), "calls": calls, "killed": killed, "runs": runs}))
spark.stop()
"""


@pytest.mark.slow
def test_a_function_does_not_notice_a_lost_executor(tmp_path: Path) -> None:
    """Its rows are made again from the answers that hosts keep: the function is not called again."""
    tables = numbers(files=6, rows=300, keys=40)
    write_files(tmp_path / "in", tables)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
        text=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"]
    assert told["calls"] == [0, 1, 2]
    assert told["runs"] == [1, 1, 1]
    assert {k: tuple(row) for k, row in told["latest"]} == sums(tables)
