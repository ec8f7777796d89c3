"""Everything that a run writes to stderr when hosts are killed, hang and are scaled: Penstock's lines, and
none of Spark's stack traces."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
import penstock as ps
from penstock.testing import Fault

def say(text):
    print("--", text, file=sys.stderr, flush=True)

def failing(rows):
    if rows.num_rows:
        raise ValueError("user code is broken")
    return rows

def fail(rows):
    raise ValueError("a job of the user's own is broken")

def upto(query, epochs):
    while len(query.progress) < epochs:
        assert not query.await_termination(0.05)

ps.log_to_stderr()
spark = ps.session("log-lines", cores=6)
source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2)
rows = ps.flow(source.load())
flow = rows.key_by("value", slots=8).aggregate(n=ps.count())
faults = (
    Fault("host.applied", do="kill", where={"host": "aggregate-1/1", "epoch": 2, "run": 0}),
    Fault("host.applied", do="stop", where={"host": "aggregate-1/0", "epoch": 5, "run": 0}),
)
settings = ps.Settings(faults=faults, heartbeat_ms=200, host_lost_ms=2_000)
say("begin")
query = flow.start(ps.to("noop"), checkpoint=sys.argv[1] + "/a", hosts=2, settings=settings)
upto(query, 8)
query.scale("aggregate-1", 3)
while len(query.status.hosts) < 3 or query.status.pending_slots:
    assert not query.await_termination(0.05)
upto(query, len(query.progress) + 2)
query.stop()
say("broken")
query = rows.map_batches(failing).key_by("value", slots=8).aggregate(n=ps.count()).start(
    ps.to("noop"), checkpoint=sys.argv[1] + "/b", hosts=1)
while query.is_active:
    try:
        query.await_termination(0.1)
    except ps.PenstockError:
        pass
say("own")
try:
    spark.sparkContext.parallelize([0], 1).foreachPartition(fail)
except Exception:
    pass
say("end")
spark.stop()
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Text on stderr, by the part of the run."""
    folder = tmp_path_factory.mktemp("log-lines")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    Path(folder, "stderr").write_text(done.stderr)
    _, *texts = re.split(r"^-- ", done.stderr, flags=re.MULTILINE)
    return {name: text for name, _, text in (text.partition("\n") for text in texts)}


def _messages(text: str, logger: str) -> list[str]:
    return re.findall(rf"Z (?:INFO|WARNING|ERROR) penstock\.{logger}: (.*)", text)


def test_kill_hang_and_scale_leave_one_line_each_and_no_stack_trace(parts: dict[str, str]) -> None:
    text = parts["begin"]
    assert "Traceback" not in text
    assert "at org.apache.spark" not in text
    others = [line for line in text.splitlines() if " penstock." not in line]
    assert not others, "all lines are Penstock's"
    assert len(text.splitlines()) < 20


def test_each_lost_host_is_named_and_then_all_is_well(parts: dict[str, str]) -> None:
    killed, stopped = _messages(parts["begin"], "hosts")
    assert killed.startswith("Host aggregate-1/1 (process ")
    assert re.match(r"Host aggregate-1/0 \(process \d+\) is lost: it was silent for 2\.", stopped)
    epochs = _messages(parts["begin"], "epochs")
    assert [line.split(" (")[0].split(" after")[0] for line in epochs] == [
        "Epoch 2 is run again",
        "All is well again",
        "Epoch 5 is run again",
        "All is well again",
    ]
    assert epochs[1].endswith("host aggregate-1/1 is back, and epoch 2 is durable after 2 runs.")


def test_a_request_to_scale_says_what_changes_and_when_it_is_done(parts: dict[str, str]) -> None:
    asked, done = _messages(parts["begin"], "control")
    assert asked == (
        "Step aggregate-1 gets 3 hosts instead of 2, as requested: aggregate-1/2 starts."
    )
    assert re.match(
        r"Step aggregate-1: all slots are where they should be after [\d.]+ s\. Its hosts: ", done
    )


def test_a_query_that_fails_says_why_in_one_line(parts: dict[str, str]) -> None:
    assert "at org.apache.spark" not in parts["broken"]
    assert len(parts["broken"].splitlines()) < 6
    assert any("has failed: " in line and "user code is broken" in line
               for line in _messages(parts["broken"], "query"))  # fmt: skip


def test_what_spark_says_of_other_jobs_stays(parts: dict[str, str]) -> None:
    assert "Exception in task" in parts["own"]
    assert "a job of the user's own is broken" in parts["own"]
