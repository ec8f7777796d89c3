"""Where the time of the newest epochs went: what a person needs to find the cause of a slow flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from penstock.driver.progress import EpochProgress, merged_latency

EPOCHS = 10
"""Newest epochs over which times are averaged."""


@dataclass(frozen=True)
class StepWork:
    """The host of a step that worked longest, beside the others. Times are in milliseconds per epoch."""

    step: str
    host: str
    """The host that worked longest."""
    longest_ms: float
    records: float
    """Records that this host processed per epoch."""
    mean_ms: float
    """Mean over all hosts of the step."""


@dataclass(frozen=True)
class EpochTimes:
    """Mean times of some epochs, in milliseconds."""

    epochs: int
    interval_ms: float | None
    """From the start of an epoch to the start of the next; None for a single epoch."""
    read_ms: float
    """From the start until all couriers had read their rows and sent them to hosts. 0 in a live flow."""
    answer_ms: float
    """From then until hosts had answered and the output was in the sink."""
    seal_ms: float
    """From then until the epoch was durable."""
    rows: float
    """Rows per epoch."""
    latency_ms: float | None
    """Latency of a row; None if there were no rows."""
    fetch_ms: float
    """Time that rows waited for state of slots that had moved, over all channels."""
    works: tuple[StepWork, ...]

    @property
    def between_ms(self) -> float | None:
        """From the end of an epoch to the start of the next: Spark's own work, and waiting for a trigger."""
        if self.interval_ms is None:
            return None
        return max(0.0, self.interval_ms - self.read_ms - self.answer_ms - self.seal_ms)

    @property
    def waited_ms(self) -> float | None:
        """Time that a row waited before its epoch began; None if there were no rows.

        >>> EpochTimes(2, 500.0, 100.0, 200.0, 50.0, 9.0, 550.0, 0.0, ()).waited_ms
        250.0
        """
        if self.latency_ms is None:
            return None
        return max(0.0, self.latency_ms - self.read_ms - self.answer_ms)


def epoch_times(progress: Sequence[EpochProgress]) -> EpochTimes | None:
    """Times of the newest epochs that had rows; None if there are none."""
    epochs = [epoch for epoch in progress if epoch.rows][-EPOCHS:]
    if not epochs:
        return None
    starts, latency = [epoch.started_ms for epoch in epochs], merged_latency(epochs)
    return EpochTimes(
        epochs=len(epochs),
        interval_ms=fmean(b - a for a, b in pairwise(starts)) if len(starts) > 1 else None,
        read_ms=fmean(epoch.read_ms for epoch in epochs),
        answer_ms=fmean(epoch.sink_ms - epoch.read_ms for epoch in epochs),
        seal_ms=fmean(epoch.seal_ms for epoch in epochs),
        rows=fmean(epoch.rows for epoch in epochs),
        latency_ms=None if latency is None else latency.mean_ms,
        fetch_ms=fmean(epoch.migration.wait_ms for epoch in epochs),
        works=tuple(_works(epochs)),
    )


def _works(epochs: Sequence[EpochProgress]) -> Iterable[StepWork]:
    worked: dict[str, float] = defaultdict(float)
    records: dict[str, int] = defaultdict(int)
    steps: dict[str, list[str]] = {}
    for host in (host for epoch in epochs for host in epoch.hosts):
        if host.host not in worked:
            steps.setdefault(host.host.rpartition("/")[0], []).append(host.host)
        worked[host.host] += host.useful_ms / len(epochs)
        records[host.host] += host.rows
    for step, hosts in steps.items():
        longest = max(hosts, key=worked.__getitem__)
        mean_ms = fmean(worked[host] for host in hosts)
        yield StepWork(step, longest, worked[longest], records[longest] / len(epochs), mean_ms)
