"""One side of a comparison: a chain on the runtime for a second or two, and what it showed."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.runtime.runtime import Runtime
from penstock.runtime.schedules import QueueSizeThrottling, Schedule
from penstock_bench.ordered.chains import TrialChain, TrialChunk
from penstock_bench.ordered.costs import Asleep
from penstock_bench.ordered.markers import Markers, Shown
from penstock_bench.ordered.rivals import QUEUES, REORDERINGS
from penstock_bench.report import Result, Sample, Show

PARTS = 100
"""Of a keyed operator; with a partitioned queue: as many as workers."""
LEAST = 20
"""Items of a trial."""
OVERHEAD_S = 25e-6
"""About what an item costs the interpreter at each operator, which only one thread can use at a time."""
THRESHOLD = 8
"""Chunks for each worker that the queues of a chain may hold under QST."""


@dataclass(frozen=True)
class Trial:
    """What to run. Trials of a group are compared with one another and take turns."""

    group: str
    facts: tuple[tuple[str, Any], ...]
    """What tells it from the others of its group, for the report."""
    chain: TrialChain
    workers: int
    schedule: str = "ct"
    queue: str = "hybrid"
    reorder: str = "nonblocking"
    """As `rivals` names them."""
    seconds: float = 1.0
    """That it should take, were all workers busy all the time; it may take longer."""
    backlog: int = 64
    """Items for each worker that wait at the entrance: as if the source were always ahead."""

    @property
    def parts(self) -> int:
        """
        >>> Trial("skew", (), TrialChain(()), workers=4, queue="partitioned").parts
        4
        """
        return self.workers if self.queue == "partitioned" else PARTS

    @property
    def items(self) -> int:
        """
        >>> from penstock_bench.ordered.chains import Op
        >>> Trial("cost", (), TrialChain((Op("keyed", 1_000),)), workers=4, seconds=2.0).items
        8000
        """
        work_s, pieces = self.chain.load()
        return max(LEAST, round(self.seconds / max(work_s / self.workers, pieces * OVERHEAD_S)))


FIGURES = ("records_per_s", "latency_ms", "p99_ms")


def run_all(
    trials: Sequence[Trial], rounds: int, show: Show, by_group: Mapping[str, int] | None = None
) -> dict[str, list[Result]]:
    """All trials, by group. Each round goes through all of a group; every other one backwards.

    So whatever slows the machine down for a while meets all sides of a comparison. Groups may have
    another number of rounds.
    """
    found: dict[str, list[Result]] = {}
    for group in dict.fromkeys(trial.group for trial in trials):
        chosen = [trial for trial in trials if trial.group == group]
        runs: list[list[Shown]] = [[] for _ in chosen]
        for number in range((by_group or {}).get(group, rounds)):
            order = range(len(chosen))
            for at in order if number % 2 == 0 else reversed(order):
                runs[at].append(run_one(chosen[at]))
        found[group] = [told(trial, steady) for trial, steady in zip(chosen, runs, strict=True)]
        for one in found[group]:
            show(line(group, one))
    return found


def run_one(trial: Trial) -> Shown:
    """Take items through the chain until all have left: as many as should take `trial.seconds`."""
    markers = Markers()
    delivery = Asleep(trial.chain.delivery_us)
    room = threading.Event()
    backlog, items = trial.backlog * trial.workers, trial.items
    fed = 0

    def begin(number: int) -> None:
        markers.begin(number)
        if fed - markers.begun < backlog // 2 and not room.is_set():
            room.set()

    def leave(item: TrialChunk) -> None:
        delivery.spend(item.records, None)
        markers.leave(item.number)

    runtime = Runtime(
        trial.chain.operators(trial.parts, begin),
        workers=trial.workers,
        schedule=schedule_of(trial),
        queue=QUEUES[trial.queue],
        reorder=REORDERINGS[trial.reorder],
    )
    chunks = trial.chain.chunks()
    runtime.open(leave)
    try:
        while fed < items:
            room.clear()
            more = max(0, min(items - fed, backlog - (fed - markers.begun)))
            fed += more
            for chunk in islice(chunks, more):
                runtime.submit(chunk)
            room.wait(1.0)
        runtime.finish()
    finally:
        runtime.close()
    return markers.shown()


def schedule_of(trial: Trial) -> str | Schedule:
    """The trial's schedule. The thresholds of QST are in records: here some chunks for each worker."""
    if trial.schedule == "qst":
        return QueueSizeThrottling(THRESHOLD * trial.workers * trial.chain.records)
    return trial.schedule


def told(trial: Trial, rounds: Sequence[Shown]) -> Result:
    """A trial and its rounds, for the report. Rates are of records at the entrance."""
    return {
        **dict(trial.facts),
        "workers": trial.workers,
        "schedule": trial.schedule,
        "queue": trial.queue,
        "reorder": trial.reorder,
        "records_per_s": [one.items_per_s * trial.chain.records for one in rounds],
        "latency_ms": [one.latency_ms for one in rounds],
        "p99_ms": [one.p99_ms for one in rounds],
    }


def line(group: str, one: Result) -> str:
    """How a trial is shown: what it was, the medians of its rounds, and how far they are apart."""
    facts = [f"{name} {one[name]}" for name in one if name not in FIGURES]
    rates = Sample.of(one["records_per_s"])
    told = f"{rates.median:,.0f} records/s ({rates.low:,.0f} to {rates.high:,.0f})"
    if "latency_ms" in one:
        told += f", {Sample.of(one['latency_ms']).median:.3g} ms"
    return f"{group}: {', '.join(facts)}: {told}"


def best(told: Sequence[Result]) -> Result:
    """The trial with the highest throughput, by the median of its rounds.

    >>> best([{"records_per_s": [1.0, 9.0, 2.0]}, {"records_per_s": [3.0, 3.0, 3.0]}])
    {'records_per_s': [3.0, 3.0, 3.0]}
    """
    return max(told, key=lambda one: statistics.median(one["records_per_s"]))


def over(side: Result, other: Result, figure: str = "records_per_s") -> Sample:
    """One side over the other, round by round, which were measured one soon after the other.

    >>> over({"records_per_s": [8.0, 9.0, 6.0]}, {"records_per_s": [4.0, 3.0, 3.0]}).median
    2.0
    """
    return Sample.of([a / b for a, b in zip(side[figure], other[figure], strict=True)])
