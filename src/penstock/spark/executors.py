"""Executors for hosts, by Spark's stage-level scheduling, and executors that are being decommissioned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyspark import SparkContext
from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    ResourceProfileBuilder,
    TaskResourceRequests,
)

from penstock.errors import SettingError
from penstock.settings import AUTO, HOST_JVM_MB, Settings
from penstock.spark import private

_LOOK_S = 1.0
"""Seconds between checks for decommissioned executors. Clouds give half a minute's notice."""


def dynamic_allocation(sc: SparkContext) -> bool:
    """Whether the application uses dynamic allocation."""
    asked = private.setting(sc, "spark.dynamicAllocation.enabled") == "true"
    return asked and not private.is_local(sc)


def cores_of_tasks(sc: SparkContext) -> int:
    """Number of cores per task, by Spark's settings."""
    return int(private.setting(sc, "spark.task.cpus", "1"))


def host_cores(sc: SparkContext, settings: Settings) -> int:
    """Number of cores that Spark accounts for a host. One that chooses its workers by load may use more."""
    return cores_of_tasks(sc) if settings.host_cores == AUTO else settings.workers


def host_profile(sc: SparkContext, settings: Settings) -> ResourceProfile | None:
    """Resource profile that gives each host its own executor; None if hosts share executors.

    The executor has as many cores as the task, so one host fills it. When the host ends, the executor is idle
    and Spark removes it.
    """
    dynamic = dynamic_allocation(sc)
    if settings.host_executors == "own" and not dynamic:
        raise SettingError(
            "executors of hosts' own need dynamic allocation, and a cluster",
            hint='make the session with spark.dynamicAllocation.enabled=true, or use host_executors="shared"',
        )
    if settings.host_executors == "shared" or not dynamic:
        return None
    cores = host_cores(sc, settings)
    executor = ExecutorResourceRequests().cores(cores)
    megabytes = settings.host_executor_mb
    if megabytes is not None and (sc.master or "").startswith("spark:"):
        # A standalone cluster only counts the JVM's memory, of which a host uses almost none.
        executor = executor.memory(f"{megabytes}m")
    elif megabytes is not None:
        executor = executor.memory(f"{HOST_JVM_MB}m").memoryOverhead(f"{megabytes - HOST_JVM_MB}m")
    return (
        ResourceProfileBuilder().require(executor).require(TaskResourceRequests().cpus(cores)).build
    )


class Decommissioned:
    """Finds job groups that run on executors which are being decommissioned.

    Spark gives such an executor no new tasks, and ends it when its tasks are done. The cloud or Kubernetes
    may not wait that long. Does nothing unless `spark.decommission.enabled` is set.
    """

    def __init__(self, sc: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._sc, self._clock = sc, clock
        self._enabled = private.setting(sc, "spark.decommission.enabled") == "true"
        self._looked, self._going = float("-inf"), frozenset[str]()

    def among(self, groups: Iterable[str]) -> frozenset[str]:
        """Those of these job groups that will lose their executor, as of a second ago or less."""
        if self._enabled and self._clock() - self._looked >= _LOOK_S:
            self._looked = self._clock()
            some = private.any_decommissioned(self._sc)
            self._going = frozenset(
                group for group in groups if some and private.runs_decommissioned(self._sc, group)
            )
        return self._going
