"""Executors of hosts, and checks for decommissioned ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pyspark import SparkContext

from penstock.errors import SettingError
from penstock.settings import Settings
from penstock.spark import private
from penstock.spark.executors import Decommissioned, host_profile

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@dataclass
class Context:
    """Settings, and nothing behind them."""

    master: str = "spark://one:7077"
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def sparkContext(self) -> Context:  # noqa: N802 - Spark's name
        return self

    @property
    def _conf(self) -> dict[str, str]:
        return self.conf


def profile(settings: Settings, master: str = "spark://one:7077", **conf: str) -> Any:
    return host_profile(cast("SparkContext", Context(master, conf)), settings)


def test_a_host_fills_its_executor_where_executors_come_and_go() -> None:
    found = profile(Settings(host_cores=3), **DYNAMIC)
    assert found.taskResources["cpus"].amount == found.executorResources["cores"].amount == 3
    assert "memory" not in found.executorResources


@pytest.mark.parametrize(
    ("master", "memory"),
    [("spark://one:7077", {"memory": 2048}), ("yarn", {"memory": 512, "memoryOverhead": 1536})],
)
def test_its_memory(master: str, memory: dict[str, int]) -> None:
    found = profile(Settings(host_executor_mb=2048), master, **DYNAMIC).executorResources
    assert {name: one.amount for name, one in found.items() if name != "cores"} == memory


def test_hosts_share_executors_elsewhere_and_where_they_are_told_to() -> None:
    assert profile(Settings()) is None
    assert profile(Settings(), "local[4]", **DYNAMIC) is None
    assert profile(Settings(host_executors="shared"), **DYNAMIC) is None
    with pytest.raises(SettingError, match="need dynamic allocation"):
        profile(Settings(host_executors="own"))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_spark_is_asked_once_a_second_and_only_where_executors_are_decommissioned(
    monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    now, asked = [0.0], list[str]()

    def runs(sc: object, group: str) -> bool:
        asked.append(group)
        return group == "b"

    monkeypatch.setattr(private, "any_decommissioned", lambda sc: True)
    monkeypatch.setattr(private, "runs_decommissioned", runs)
    context = Context(conf={"spark.decommission.enabled": enabled})
    going = Decommissioned(cast("SparkContext", context), lambda: now[0])
    told = []
    for now[0] in (0.0, 0.5, 1.0):
        told.append(set(going.among(["a", "b"])))
    if enabled == "true":
        assert (told, asked) == ([{"b"}] * 3, ["a", "b", "a", "b"])
    else:
        assert (told, asked) == ([set()] * 3, [])
