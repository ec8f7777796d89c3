"""Samples of a running query's resources: memory, descriptors and threads of its processes, and files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import psutil

ROLES = ("driver", "jvm", "host", "workers")
"""Roles of processes: the driver, Spark's JVM, a host (mean of all), and all other Python processes."""


@dataclass(frozen=True)
class HeldResources:
    """Resources of a process, or of several."""

    memory_mb: float = 0.0
    """Resident memory in MB."""
    descriptors: float = 0.0
    threads: float = 0.0

    def __add__(self, other: HeldResources) -> HeldResources:
        return HeldResources(
            self.memory_mb + other.memory_mb,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
        )


@dataclass(frozen=True)
class FileCount:
    """Number and total size of the files below a folder."""

    number: int
    mb: float
    """Size in MB."""


@dataclass(frozen=True)
class SoakSample:
    """Resources of a query at one moment."""

    at_s: float
    """Seconds into the run."""
    roles: Mapping[str, HeldResources]
    hosts: int
    heap_mb: float
    """Megabytes in use on the JVM's heap after a garbage collection."""
    checkpoint: FileCount
    sink_entries: int
    """Number of folders and files at the top of the sink."""
    epochs: int
    p99_ms: float | None
    """p99 latency from arrival to sink in the newest epoch, in milliseconds."""


def by_role(hosts: Mapping[str, int]) -> dict[str, HeldResources]:
    """Resources of this process and its children, by role. `hosts` maps hosts to their process ids."""
    own, totals = psutil.Process(), {role: HeldResources() for role in ROLES}
    totals["driver"] = held(own)
    for process in own.children(recursive=True):
        with suppress(psutil.Error):
            role = "host" if process.pid in hosts.values() else "workers"
            role = "jvm" if process.name() == "java" else role
            totals[role] += held(process)
    total, number = totals["host"], max(1, len(hosts))
    totals["host"] = HeldResources(
        total.memory_mb / number, total.descriptors / number, total.threads / number
    )
    return totals


def held(process: psutil.Process) -> HeldResources:
    with process.oneshot():
        memory_mb = process.memory_info().rss / 2**20
        return HeldResources(memory_mb, process.num_fds(), process.num_threads())


def files_below(folder: Path) -> FileCount:
    """Count the files below a folder. Files that vanish meanwhile are skipped."""
    number, size = 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(f"{place}/{name}").st_size
                number += 1
    return FileCount(number, size / 2**20)


def growth(at_s: Sequence[float], values: Sequence[float]) -> float:
    """The value at the end of a run divided by that in its middle, on a line fitted to the second half; 1
    is flat.

    The slope of the line is the median of the slopes between all pairs of values (the Theil-Sen estimator),
    so that a single spike does not tilt it.

    >>> round(growth(range(100), [100.0] * 50 + [200.0 + n for n in range(50)]), 3)
    1.245
    >>> growth(range(9), [5.0, 9.0, 1.0, 4.0, 4.0, 4.0, 80.0, 4.0, 4.0])
    1.0
    """
    half = (at_s[0] + at_s[-1]) / 2
    late = [(at, value) for at, value in zip(at_s, values, strict=True) if at >= half]
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(late, 2) if b[0] > a[0])
    level = median(value - slope * at for at, value in late)
    middle, end = (level + slope * at for at in (late[0][0], late[-1][0]))
    return end / middle if middle > 0 else 1.0
