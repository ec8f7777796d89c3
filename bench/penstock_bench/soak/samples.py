"""What a running query holds at one moment: memory, descriptors and threads of its processes, files."""

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
"""The driver's process, Spark's JVM, a host (the mean of them), and all other Python processes."""


@dataclass(frozen=True)
class HeldResources:
    """What processes hold."""

    memory_mb: float = 0.0
    """Resident memory."""
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
    """Files below a folder."""

    number: int
    mb: float


@dataclass(frozen=True)
class SoakSample:
    """One look at everything."""

    at_s: float
    """Seconds into the run."""
    roles: Mapping[str, HeldResources]
    hosts: int
    heap_mb: float
    """What lives on the JVM's heap after a collection."""
    checkpoint: FileCount
    sink_entries: int
    """Folders and files at the top of the sink."""
    epochs: int
    p99_ms: float | None
    """From arrival to sink, in the newest epoch."""


def by_role(hosts: Mapping[str, int]) -> dict[str, HeldResources]:
    """What the processes of this one's query hold; hosts are given by their process numbers."""
    own, found = psutil.Process(), {role: HeldResources() for role in ROLES}
    found["driver"] = held(own)
    for process in own.children(recursive=True):
        with suppress(psutil.Error):
            role = "host" if process.pid in hosts.values() else "workers"
            role = "jvm" if process.name() == "java" else role
            found[role] += held(process)
    each, number = found["host"], max(1, len(hosts))
    found["host"] = HeldResources(
        each.memory_mb / number, each.descriptors / number, each.threads / number
    )
    return found


def held(process: psutil.Process) -> HeldResources:
    with process.oneshot():
        memory_mb = process.memory_info().rss / 2**20
        return HeldResources(memory_mb, process.num_fds(), process.num_threads())


def files_below(folder: Path) -> FileCount:
    """All files below a folder; some may go while they are counted."""
    number, size = 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(f"{place}/{name}").st_size
                number += 1
    return FileCount(number, size / 2**20)


def growth(at_s: Sequence[float], values: Sequence[float]) -> float:
    """The value at the end over that in the middle of a run, by a line through the second half.

    The line has the median of all slopes between two values (Theil and Sen), so that a single
    spike does not tilt it. 1 is flat.

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
