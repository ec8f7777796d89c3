"""A short run of chaos on the session of all tests: some twenty faults, nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock_bench.chaos.arena import ChaosArena
from penstock_bench.chaos.bench import chaos
from penstock_bench.chaos.ground import LocalGround
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.chaos.site import DriverThread


def test_nothing_is_lost_and_nothing_comes_twice(spark: SparkSession, tmp_path: Path) -> None:
    plan = ChaosPlan(
        seed=3, seconds=12, calm_s=1, every_s=0.7, allows=("burst",), burst_s=3, burst_every_s=6
    )
    arena = ChaosArena(tmp_path)
    ground = LocalGround(arena)
    found = chaos(plan, arena, ground, lambda: DriverThread(spark, arena), print)
    assert found.difference.first == ""
    assert found.late == 0
    assert found.difference.expected >= 12
    happened = [fault for fault in found.faults if fault["happened_s"] is not None]
    assert len(happened) >= 5
    assert len({fault["kind"] for fault in happened}) >= 3
