"""Hosts as Spark jobs: one task each, in a job group of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import psutil
from pyspark import SparkContext
from pyspark.util import InheritableThread

from penstock.faults import point
from penstock.host.main import TaskOrder, run_hosts
from penstock.plan.steps import KeyedStep
from penstock.spark import private

_GRACE_S = 5.0
"""How long a host that was told to stop may take before its job is cancelled."""


class _Job(InheritableThread):
    """The thread that waits for one Spark job, of one host or of all of them."""

    def __init__(self, sc: SparkContext, order: TaskOrder, group: str) -> None:
        super().__init__(target=self._work, name=group, daemon=True)
        self._sc, self._order, self.group = sc, order, group
        self.called_off = threading.Event()
        self.failure = ""

    def _work(self) -> None:
        order, first = self._order, self._order.hosts[0]
        point("driver.host", host=first.host, step=first.step.id, until=self.called_off)
        if self.called_off.is_set():
            return
        names = ", ".join(host.host for host in order.hosts)
        self._sc.setJobGroup(self.group, f"Penstock host {names}", interruptOnCancel=True)
        try:
            self._sc.parallelize([0], 1).foreachPartition(lambda _: run_hosts(order))
        except Exception as ended:
            self.failure = str(ended).strip().split("\n")[0]


class SparkHostJobs:
    """Starts and ends hosts through Spark. See `driver.fleet.HostJobs`.

    `order` says what the task of a host is to run. Hosts that it names together share a job: they
    start, die and end together.
    """

    def __init__(
        self, sc: SparkContext, run: str, order: Callable[[str, KeyedStep], TaskOrder]
    ) -> None:
        self._sc, self._run, self._order = sc, run, order
        self._jobs: dict[str, _Job] = {}
        self._started = 0

    def start(self, host: str, step: KeyedStep) -> None:
        if self.running(host):
            return
        self._started += 1
        order = self._order(host, step)
        group = f"penstock-{self._run}-{host}-{self._started}"
        job = _Job(self._sc, order, group)
        self._jobs |= {one.host: job for one in order.hosts}
        job.start()

    def running(self, host: str) -> bool:
        return host in self._jobs and self._jobs[host].is_alive()

    def failure(self, host: str) -> str:
        return self._jobs[host].failure if host in self._jobs else "it was never started"

    def cancel(self, host: str) -> None:
        job = self._jobs.get(host)
        if job is None:
            return
        job.called_off.set()
        job.join(_GRACE_S)
        if job.is_alive():
            self._sc.cancelJobGroup(job.group)
            job.join(_GRACE_S)

    def give_up(self, host: str, pid: int) -> None:
        """On this machine, kill the host's process: Spark tries its task again. Elsewhere, cancel the job:
        Spark kills the Python worker of a cancelled task some seconds later, also one that is stopped.

        A job is not cancelled without need: another try of its task, with other hosts in it, may be up."""
        if private.is_local(self._sc) and _kill_worker(pid):
            return
        job = self._jobs.get(host)
        if job is not None and job.is_alive():
            job.called_off.set()
            self._sc.cancelJobGroup(job.group)


def _kill_worker(pid: int) -> bool:
    """Kill a Python worker of Spark's, and no other process that may have its number by now; returns
    whether it is gone."""
    try:
        if any(word.endswith(".daemon") for word in psutil.Process(pid).cmdline()):
            os.kill(pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        pass
    except (psutil.Error, OSError):
        return False
    return True
