"""Executors of hosts: their own ones, by Spark's stage-level scheduling, and which of them will go soon."""

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
from penstock.settings import HOST_JVM_MB, Settings
from penstock.spark import private

_LOOK_S = 1.0
"""Seconds from one look for executors that will go to the next. Clouds give half a minute's notice."""


def dynamic_allocation(sc: SparkContext) -> bool:
    """Whether executors come and go with the tasks that there are."""
    asked = sc.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return asked and not private.is_local(sc)


def host_profile(sc: SparkContext, settings: Settings) -> ResourceProfile | None:
    """What a host asks of Spark: an executor of its own; None: any executor with a free task slot.

    Executor and task have the same cores, so that one host fills an executor: when it ends, the executor is
    idle, and Spark lets go of it.
    """
    dynamic = dynamic_allocation(sc)
    if settings.host_executors == "own" and not dynamic:
        raise SettingError(
            "executors of hosts' own need dynamic allocation, and a cluster",
            hint='make the session with spark.dynamicAllocation.enabled=true, or use host_executors="shared"',
        )
    if settings.host_executors == "shared" or not dynamic:
        return None
    cores = settings.workers
    executor = ExecutorResourceRequests().cores(cores)
    megabytes = settings.host_executor_mb
    if megabytes is not None and (sc.master or "").startswith("spark:"):
        # Spark's own cluster counts the JVM's memory only, of which a host's touches nearly nothing.
        executor = executor.memory(f"{megabytes}m")
    elif megabytes is not None:
        executor = executor.memory(f"{HOST_JVM_MB}m").memoryOverhead(f"{megabytes - HOST_JVM_MB}m")
    return (
        ResourceProfileBuilder().require(executor).require(TaskResourceRequests().cpus(cores)).build
    )


class Decommissioned:
    """Tells which job groups run on executors that are being decommissioned.

    Spark gives such an executor no new tasks, waits for those that it has, and then lets it end; whoever
    asked for it (a cloud that takes a machine back, Kubernetes) may not wait that long. Only asked about
    where `spark.decommission.enabled` is set.
    """

    def __init__(self, sc: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._sc, self._clock = sc, clock
        self._enabled = sc.getConf().get("spark.decommission.enabled", "false") == "true"
        self._looked, self._going = float("-inf"), frozenset[str]()

    def among(self, groups: Iterable[str]) -> frozenset[str]:
        """Those of these groups whose task will lose its executor, as of a second ago at most."""
        if self._enabled and self._clock() - self._looked >= _LOOK_S:
            self._looked = self._clock()
            some = private.any_decommissioned(self._sc)
            self._going = frozenset(
                group for group in groups if some and private.runs_decommissioned(self._sc, group)
            )
        return self._going
