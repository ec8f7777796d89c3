"""CPU of a process: how much of its cores it has used, and how many it may use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cores_allowed(cgroup: Path = _CGROUP) -> float:
    """Number of cores that this process may use: those it is bound to, or less by its container's quota."""
    bound = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return min(bound, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or "max"
        return bound


class CpuMeter:
    """Measures the CPU load of this process: CPU time of all its threads over the time of its cores.

    >>> wall, cpu = iter([10.0, 12.0, 13.0]), iter([1.0, 2.5, 2.5])
    >>> meter = CpuMeter(cores=1.0, wall=lambda: next(wall), cpu=lambda: next(cpu))
    >>> meter.load(), meter.load()
    (0.75, 0.0)
    """

    def __init__(
        self,
        cores: float,
        wall: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """`cores` is the number of cores that the process is meant to use."""
        self._cores, self._wall, self._cpu = min(cores, cores_allowed()), wall, cpu
        self._at, self._used = wall(), cpu()

    def load(self) -> float:
        """CPU load since the last call; 1 if all its cores were busy."""
        at, used = self._wall(), self._cpu()
        passed, spent = at - self._at, used - self._used
        self._at, self._used = at, used
        return round(spent / (passed * self._cores), 4) if passed > 0 else 0.0
