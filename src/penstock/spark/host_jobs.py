"""Hosts as Spark jobs: one task each, in a job group of its own."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import SparkContext
from pyspark.util import InheritableThread

from penstock.host.main import HostOrder, run_host
from penstock.plan.steps import KeyedStep

_GRACE_S = 5.0
"""How long a host that was told to stop may take before its job is cancelled."""


class _Job(InheritableThread):
    """The thread that waits for one host's Spark job."""

    def __init__(self, sc: SparkContext, order: HostOrder, group: str) -> None:
        super().__init__(target=self._work, name=group, daemon=True)
        self._sc, self._order, self.group = sc, order, group
        self.failure = ""

    def _work(self) -> None:
        order = self._order
        self._sc.setJobGroup(self.group, f"Penstock host {order.host}", interruptOnCancel=True)
        try:
            self._sc.parallelize([0], 1).foreachPartition(lambda _: run_host(order))
        except Exception as ended:
            self.failure = str(ended).strip().split("\n")[0]


class SparkHostJobs:
    """Starts and ends hosts through Spark. See `driver.fleet.HostJobs`."""

    def __init__(
        self, sc: SparkContext, run: str, order: Callable[[str, KeyedStep], HostOrder]
    ) -> None:
        self._sc, self._run, self._order = sc, run, order
        self._jobs: dict[str, _Job] = {}
        self._started = 0

    def start(self, host: str, step: KeyedStep) -> None:
        self._started += 1
        group = f"penstock-{self._run}-{host}-{self._started}"
        self._jobs[host] = _Job(self._sc, self._order(host, step), group)
        self._jobs[host].start()

    def running(self, host: str) -> bool:
        return host in self._jobs and self._jobs[host].is_alive()

    def failure(self, host: str) -> str:
        return self._jobs[host].failure if host in self._jobs else "it was never started"

    def cancel(self, host: str) -> None:
        job = self._jobs.get(host)
        if job is None:
            return
        job.join(_GRACE_S)
        if job.is_alive():
            self._sc.cancelJobGroup(job.group)
            job.join(_GRACE_S)
