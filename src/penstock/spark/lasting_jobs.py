"""Hosts and live couriers as Spark jobs. Each is one task in its own job group."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import psutil
from pyspark import SparkContext
from pyspark.resource import ResourceProfile
from pyspark.util import InheritableThread

from penstock.faults import point
from penstock.spark import private
from penstock.spark.executors import Decommissioned

W = TypeVar("W")

_GRACE_S = 5.0
"""Seconds that a task has to stop before its job is cancelled."""


@dataclass(frozen=True)
class LastingTask:
    """A Spark task that runs until it is stopped."""

    names: tuple[str, ...]
    """Names of the hosts, or of the courier, in this task. They start and end together."""
    step: str
    """Step of its host; "" for a courier."""
    run: Callable[[], None]
    """Function that the task runs. It must be picklable."""
    query: str = ""
    """Name of the query."""

    @property
    def what(self) -> str:
        """Name of the job, and of its stage, in Spark's UI."""
        names = ", ".join(self.names)
        return f"Penstock {'host ' if self.step else ''}{names}{self.query and f' of {self.query}'}"


class _Job(InheritableThread):
    """Thread that runs one Spark job."""

    def __init__(
        self, sc: SparkContext, task: LastingTask, group: str, profile: ResourceProfile | None
    ) -> None:
        super().__init__(target=self._work, name=group, daemon=True)
        self._sc, self._task, self.group, self._profile = sc, task, group, profile
        self.called_off = threading.Event()
        self.failure = ""

    def _work(self) -> None:
        task = self._task
        point("driver.host", host=task.names[0], step=task.step, until=self.called_off)
        if self.called_off.is_set():
            return
        self._sc.setJobGroup(self.group, task.what, interruptOnCancel=True)
        private.mark_handled(self._sc)
        run, one = task.run, self._sc.parallelize([0], 1)
        if self._profile is not None:
            one = one.withResources(self._profile)
        try:
            with private.named(self._sc, task.what):
                self._sc.runJob(one, lambda _: [run()])
        except Exception as ended:
            self.failure = reason(str(ended))


def reason(error: str) -> str:
    """The reason of a job's failure in one line, from Spark's error text.

    >>> reason("An error\\n  ...daemon (ModuleNotFoundError: No module named 'penstock')\\n  at ...")[:49]
    'the Python of its executor has no module penstock'
    >>> reason("An exception was thrown:\\nTraceback:\\n  ...\\na.b.OddError: why\\n")
    'OddError: why'
    """
    lacking = re.search(r"No module named '([\w.]+)'", error)
    raised = re.search(r"^[\w.]*\b(\w+Error: .+)$", error, re.MULTILINE)  # last line of a traceback
    if lacking is None:
        return raised[1] if raised is not None else error.strip().split("\n")[0]
    return (
        f"the Python of its executor has no module {lacking[1]}; the guide explains, under 'On a cluster', "
        "how to ship an environment, or Penstock alone, with the job"
    )


class SparkJobs(Generic[W]):
    """Starts and ends hosts, or couriers, as Spark jobs. See `driver.crew.Jobs`.

    `task` creates the task of a member. Members of the same task share a job. With a `profile`, tasks only
    run on executors of that profile.
    """

    def __init__(
        self,
        sc: SparkContext,
        run: str,
        task: Callable[[str, W], LastingTask],
        profile: ResourceProfile | None = None,
    ) -> None:
        self._sc, self._run, self._task, self._profile = sc, run, task, profile
        self._decommissioned = Decommissioned(sc)
        self._jobs: dict[str, _Job] = {}
        self._started = 0

    def start(self, name: str, work: W) -> None:
        if self.running(name):
            return
        self._started += 1
        task = self._task(name, work)
        job = _Job(self._sc, task, f"penstock-{self._run}-{name}-{self._started}", self._profile)
        self._jobs |= dict.fromkeys(task.names, job)
        job.start()

    def running(self, name: str) -> bool:
        return name in self._jobs and self._jobs[name].is_alive()

    def failure(self, name: str) -> str:
        return self._jobs[name].failure if name in self._jobs else "its job was never started"

    def cancel(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None:
            return
        job.called_off.set()
        job.join(_GRACE_S)
        if job.is_alive():
            self._sc.cancelJobGroup(job.group)
            job.join(_GRACE_S)

    def leaving(self, names: Iterable[str]) -> list[str]:
        running = {name: self._jobs[name].group for name in names if self.running(name)}
        going = self._decommissioned.among(
            job.group for job in self._jobs.values() if job.is_alive()
        )
        return [name for name, group in running.items() if group in going]

    def give_up(self, name: str, pid: int) -> None:
        """In local mode, kill the member's process, so that Spark restarts its task. On a cluster, cancel the
        job; then Spark kills the Python worker some seconds later, even if it hangs.

        The job is only cancelled if necessary, since a restarted task with other hosts may be up already."""
        if private.is_local(self._sc) and _kill_worker(pid):
            return
        job = self._jobs.get(name)
        if job is not None and job.is_alive():
            job.called_off.set()
            self._sc.cancelJobGroup(job.group)


def _kill_worker(pid: int) -> bool:
    """Kill a Python worker of Spark, unless its process id belongs to another process by now. Returns whether
    the worker is gone."""
    try:
        if any(word.endswith(".daemon") for word in psutil.Process(pid).cmdline()):
            os.kill(pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        pass
    except (psutil.Error, OSError):
        return False
    return True
