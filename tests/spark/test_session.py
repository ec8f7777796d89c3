"""Whether there is room for hosts and couriers in a session whose executors come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark import session


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that counts as one of a cluster, without pauses between checks."""
    monkeypatch.setattr(session, "is_local", lambda spark: False)
    monkeypatch.setattr(session, "_LOOK_S", 0.0)


@pytest.mark.usefixtures("elsewhere")
def test_executors_that_are_on_their_way_are_waited_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Iterator[int] = iter([2, 2, 4, 8])
    monkeypatch.setattr(session, "task_slots", lambda spark: next(told))
    session.check_cores(spark, hosts=5, patience_s=60)
    assert next(told, None) is None


@pytest.mark.usefixtures("elsewhere")
def test_a_cluster_without_room_is_told_from_one_that_gives_nothing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "task_slots", lambda spark: 2)
    with pytest.raises(ps.SettingError, match=r"no executor.*spark\.executor\.memory"):
        session.check_cores(spark, hosts=2)
    monkeypatch.setattr(session, "executors", lambda spark: 1)
    with pytest.raises(ps.SettingError, match=r"need 3 task slots.* has 2.*more cores"):
        session.check_cores(spark, hosts=2)


def test_hosts_and_couriers_come_from_one_daemon(spark: SparkSession) -> None:
    """A second one would have to load everything again, before the first epoch."""

    def daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    context = spark.sparkContext
    (of_hosts,) = context.runJob(context.parallelize([0], 1), lambda _: [os.getppid()])
    (of_couriers,) = spark.range(1).repartition(1).mapInArrow(daemon, "pid long").collect()
    assert of_hosts == of_couriers.pid


def test_a_session_warms_up_with_a_job_that_nobody_notices(spark: SparkSession) -> None:
    context = spark.sparkContext
    before = (context.getLocalProperty("spark.job.description"), spark.conf.getAll)
    tracker, known = context.statusTracker(), set(context.statusTracker().getJobIdsForGroup())
    warming = session._warm_up(spark)
    warming.join(120)
    assert not warming.is_alive()
    (job,) = set(tracker.getJobIdsForGroup()) - known
    info = tracker.getJobInfo(job)
    assert info is not None
    assert info.status == "SUCCEEDED"
    assert (context.getLocalProperty("spark.job.description"), spark.conf.getAll) == before


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
def test_a_session_can_be_stopped_while_it_warms_up(pause_s: float) -> None:
    """Without an error in any log, and a new one can follow."""
    program = (
        "import time, penstock as ps\n"
        "spark = ps.session('one', cores=2)\n"
        f"time.sleep({pause_s})\n"
        "spark.stop()\n"
        "spark = ps.session('two', cores=2)\n"
        "print('rows', spark.range(5).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "rows 5\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert " ERROR " not in done.stderr
