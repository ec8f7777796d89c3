"""Failures of executors and workers at a fault point; the flow's settings take them to executors."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psutil

Whom = Literal["executor", "worker"]


def own_executor() -> psutil.Process:
    """The JVM of the executor above this process, which is a task's."""
    return _above("CoarseGrainedExecutorBackend")


def own_worker() -> psutil.Process:
    """The worker above this process."""
    return _above("org.apache.spark.deploy.worker.Worker")


def _above(word: str) -> psutil.Process:
    return next(one for one in psutil.Process().parents() if word in " ".join(one.cmdline()))


@dataclass(frozen=True)
class Strike:
    """Sends a signal to this task's executor or worker. If a worker is killed or stopped, all processes that
    it started are too, as on a machine that fails."""

    whom: Whom
    number: int
    marks: str
    """Name of the files that mark each strike, followed by its number."""
    times: int = 1
    """Most strikes, in all processes together."""

    def __call__(self, passed: Mapping[str, Any]) -> None:
        if not any(self._is_first(time) for time in range(self.times)):
            return
        if self.whom == "executor":
            own_executor().send_signal(self.number)
            return
        worker = own_worker()
        family = [] if self.number == signal.SIGTERM else worker.children(recursive=True)
        family.sort(key=lambda one: one.pid == os.getpid())  # This process comes last.
        for process in [worker, *family]:
            process.send_signal(self.number)

    def _is_first(self, time: int) -> bool:
        try:
            os.close(os.open(f"{self.marks}-{time}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
