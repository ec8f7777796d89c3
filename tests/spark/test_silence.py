"""Stop signals: hosts that do nothing more, and a driver that was away for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.faults import Fault
from penstock.spark import lasting_jobs
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_faults import await_condition, epochs_in
from tests.spark.test_flow import sums

QUICK = ps.Settings(heartbeat_ms=200, host_lost_ms=2_000)


class StoppingSink:
    """Stops a host in epoch 2: before couriers reach it, or when they are done and nothing is sealed."""

    def __init__(self, before: bool) -> None:
        self.kept, self._before = ps.collect(), before
        self.query: ps.FlowQuery | None = None
        self.stopped: psutil.Process | None = None
        self.stopped_at = 0.0
        self.done_s: float | None = None
        """Seconds from the signal to the next call, of the epoch after it."""

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        if epoch == 2 and self._before:
            self._stop()
        self.kept.write(df, epoch, flow_id)
        if epoch == 2:
            self._stop()
        elif epoch == 3 and self.done_s is None:
            self.done_s = time.monotonic() - self.stopped_at

    def _stop(self) -> None:
        if self.stopped is None:
            assert self.query is not None
            self.stopped_at = time.monotonic()
            self.stopped = psutil.Process(next(iter(self.query.status.hosts.values())))
            self.stopped.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    ("hosts", "when", "killed"),
    [
        pytest.param(2, "before", True, marks=pytest.mark.slow),
        pytest.param(2, "after", True, marks=pytest.mark.slow),
        (1, "before", True),
        (3, "before", False),
    ],
)
def test_a_stopped_host_is_given_up(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    hosts: int,
    when: str,
    killed: bool,
) -> None:
    """Others take its slots, or its next incarnation does. Where it cannot be killed at once, as on
    another machine, it goes on later, and finds that nobody counts on it."""
    if not killed:
        monkeypatch.setattr(lasting_jobs, "_kill_worker", lambda pid: False)
    tables = numbers(files=6, rows=1000, keys=100)
    write_files(tmp_path / "in", tables)
    flow = (
        ps.flow(stream(spark, tmp_path / "in"))
        .key_by("k", slots=16)
        .aggregate(total=ps.sum("v"), n=ps.count())
    )
    sink = StoppingSink(before=when == "before")
    query = flow.start(
        sink, checkpoint=checkpoint, trigger="available_now", hosts=hosts, settings=QUICK
    )
    sink.query = query
    if not killed:
        await_condition(lambda: sink.stopped is not None)
        assert sink.stopped is not None
        gone = sink.stopped
        await_condition(lambda: gone.pid not in query.status.hosts.values() or not query.is_active)
        gone.send_signal(signal.SIGCONT)
    query.await_termination(120)
    assert sink.stopped is not None
    assert sink.done_s is not None
    print(f"{hosts} hosts, {when}, killed {killed}: {sink.done_s:.2f} s")
    assert sink.done_s < QUICK.host_lost_ms / 1000 + 5, "seconds until the next epoch was done"
    assert [p.runs for p in query.progress] == [1, 1, 2, 1, 1, 1]
    assert {k: (r["total"], r["n"]) for k, r in sink.kept.latest("k").items()} == sums(tables)
    _, left = psutil.wait_procs([sink.stopped], timeout=20)
    assert not left, "the process that was stopped is still there"


@pytest.mark.parametrize("point", ["courier.read", "courier.sent"])
def test_a_stopped_courier_is_given_up(
    spark: SparkSession, tmp_path: Path, checkpoint: str, point: str
) -> None:
    """Its channels are open, and it says nothing more: the epoch is run again without it."""
    tables = numbers(files=4, rows=1000, keys=100)
    write_files(tmp_path / "in", tables)
    stop = Fault(point, "stop", {"epoch": 2, "run": 0, "partition": 0})
    query, sink = run(
        ps.flow(stream(spark, tmp_path / "in"))
        .key_by("k", slots=16)
        .aggregate(total=ps.sum("v"), n=ps.count()),
        checkpoint,
        hosts=2,
        settings=replace(QUICK, faults=(stop,)),
    )
    assert [p.runs for p in query.progress] == [1, 1, 2, 1]
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)


DRIVER = """
import sys
import penstock as ps
from pyspark.sql import functions as F
spark = ps.session(cores=6)
source = (spark.readStream.format("rate-micro-batch")
    .options(rowsPerBatch=500, numPartitions=2, startTimestamp=0).load()
    .select((F.col("value") % 97).alias("k"), F.col("value").alias("v")))
flow = ps.flow(source).key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())
query = flow.start(ps.to("noop"), checkpoint=sys.argv[1] + "/checkpoint", hosts=2,
    settings=ps.Settings(heartbeat_ms=200, host_lost_ms=2_000))
query.await_termination()
"""


@pytest.mark.slow
def test_a_driver_that_was_stopped_loses_no_host(tmp_path: Path) -> None:
    """It heard nobody for twice the time after which a host is given up, and nobody heard it."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await_condition(lambda: len(epochs_in(tmp_path)) >= 3)
        driver.send_signal(signal.SIGSTOP)
        time.sleep(5)  # it is the length of the silence that matters
        driver.send_signal(signal.SIGCONT)
        before = len(epochs_in(tmp_path))
        await_condition(lambda: len(epochs_in(tmp_path)) >= before + 5)
    finally:
        os.kill(driver.pid, signal.SIGCONT)
        driver.send_signal(signal.SIGINT)
        _, log = driver.communicate(timeout=60)
    assert "is lost" not in log
    assert "is run again" not in log
