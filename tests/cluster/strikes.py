"""What happens to executors and workers at a fault point: it goes to executors with the flow's settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psutil

Whom = Literal["executor", "worker"]


def own_executor() -> psutil.Process:
    """The executor's JVM above this process, a task's."""
    return _above("CoarseGrainedExecutorBackend")


def own_worker() -> psutil.Process:
    """The worker above this process."""
    return _above("org.apache.spark.deploy.worker.Worker")


def _above(word: str) -> psutil.Process:
    return next(one for one in psutil.Process().parents() if word in " ".join(one.cmdline()))


@dataclass(frozen=True)
class Strike:
    """Sends a signal to the own executor, or to the own worker. Of a worker that is killed or stopped, all
    that it has started is, too, as on a machine that fails."""

    whom: Whom
    number: int
    marks: str
    """A file is made for each time, with this name and its number."""
    times: int = 1
    """How often it happens, in all processes together."""

    def __call__(self, passed: Mapping[str, Any]) -> None:
        if not any(self._is_first(time) for time in range(self.times)):
            return
        if self.whom == "executor":
            own_executor().send_signal(self.number)
            return
        worker = own_worker()
        family = [] if self.number == signal.SIGTERM else worker.children(recursive=True)
        family.sort(key=lambda one: one.pid == os.getpid())  # this process last
        for process in [worker, *family]:
            process.send_signal(self.number)

    def _is_first(self, time: int) -> bool:
        try:
            os.close(os.open(f"{self.marks}-{time}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
