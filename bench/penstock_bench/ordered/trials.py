"""Trials: one side of a comparison is a chain that runs for a second or two, with its measurements."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from penstock.runtime import Runtime
from penstock.runtime.schedules import Schedule, queue_size_throttling
from penstock_bench.ordered.chains import Asleep, TrialChain, TrialChunk
from penstock_bench.ordered.rivals import QUEUES, REORDERINGS
from penstock_bench.report import Result, Sample, Show

LOW, HIGH = 0.2, 0.8
"""Shares of the items, in order of exit, between which latencies count."""


@dataclass(frozen=True)
class Shown:
    """Throughput and latency of one run of a trial."""

    items_per_s: float
    latency_ms: float
    """Mean latency in milliseconds."""
    p99_ms: float


class Markers:
    """Begin and exit times of items, by number. Any thread may write them.

    >>> times = iter([1.0, 3.0])
    >>> markers = Markers(lambda: next(times))
    >>> markers.begin(0), markers.leave(0), markers.latencies_s()
    (None, None, {0: 2.0})
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # One thread at a time sets a number, and setting an item of a dict is atomic.
        self._begun: dict[int, float] = {}
        self._left: dict[int, float] = {}

    @property
    def begun(self) -> int:
        """Number of items that have begun."""
        return len(self._begun)

    def begin(self, number: int) -> None:
        """Note that the first operator begins with this item."""
        self._begun[number] = self._clock()

    def leave(self, number: int) -> None:
        """Note that an output of this item leaves; the last one counts."""
        self._left[number] = self._clock()

    def latencies_s(self) -> dict[int, float]:
        """Seconds from begin to exit, by number, of items that have left."""
        return {number: at - self._begun[number] for number, at in self._left.items()}

    def shown(self) -> Shown:
        """Throughput and latency, once all items have left."""
        return shown(self._begun, self._left)


def shown(begun: Mapping[int, float], left: Mapping[int, float]) -> Shown:
    """Throughput of all items, and latency of those between the 20th and 80th percentile of exits.

    >>> shown({n: n - 0.5 for n in range(100)}, {n: n + 0.5 for n in range(100)})
    Shown(items_per_s=1.0, latency_ms=1000.0, p99_ms=1000.0)
    """
    exits = sorted((at, number) for number, at in left.items())
    chosen = exits[int(LOW * (len(exits) - 1)) : int(HIGH * (len(exits) - 1)) + 1]
    waited_ms = np.array([(at - begun[number]) * 1e3 for at, number in chosen])
    return Shown(
        items_per_s=len(exits) / (exits[-1][0] - min(begun.values())),
        latency_ms=float(waited_ms.mean()),
        p99_ms=float(np.percentile(waited_ms, 99)),
    )


PARTS = 100
"""Parts of a keyed operator; with a partitioned queue, each worker has one part."""
LEAST = 20
"""Fewest items of a trial."""
OVERHEAD_S = 25e-6
"""Approximate seconds that the interpreter needs per item and operator; one thread at a time can use it."""
THRESHOLD = 8
"""Chunks per worker that the queues of a chain may hold under QST."""


@dataclass(frozen=True)
class Trial:
    """One side of a comparison. Trials of a group are compared with one another and take turns."""

    group: str
    facts: tuple[tuple[str, Any], ...]
    """Names and values that distinguish this trial from others of its group, for the report."""
    chain: TrialChain
    workers: int
    schedule: str = "ct"
    queue: str = "hybrid"
    reorder: str = "nonblocking"
    """Queue and reordering, by their names in `rivals`."""
    seconds: float = 1.0
    """Seconds that the trial takes if all workers are busy all the time; it may take longer."""
    backlog: int = 64
    """Items per worker that wait at the entrance, as if the source were always ahead."""

    @property
    def parts(self) -> int:
        """Parts of a keyed operator.

        >>> Trial("skew", (), TrialChain(()), workers=4, queue="partitioned").parts
        4
        """
        return self.workers if self.queue == "partitioned" else PARTS

    @property
    def items(self) -> int:
        """Number of input items, so that the trial takes about `seconds`.

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
    """Run all trials; return results by group. Each round runs a whole group; every other one backwards.

    So a slow phase of the machine affects all sides of a comparison. `by_group` sets another number
    of rounds for some groups.
    """
    results: dict[str, list[Result]] = {}
    for group in dict.fromkeys(trial.group for trial in trials):
        chosen = [trial for trial in trials if trial.group == group]
        runs: list[list[Shown]] = [[] for _ in chosen]
        for number in range((by_group or {}).get(group, rounds)):
            order = range(len(chosen))
            for at in order if number % 2 == 0 else reversed(order):
                runs[at].append(run_one(chosen[at]))
        results[group] = [summary(trial, each) for trial, each in zip(chosen, runs, strict=True)]
        for result in results[group]:
            show(line(group, result))
    return results


def run_one(trial: Trial) -> Shown:
    """Run `trial.items` items through the chain until all have left."""
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

    stream = Runtime(
        trial.chain.operators(trial.parts, begin),
        workers=trial.workers,
        schedule=schedule_of(trial),
        queue=QUEUES[trial.queue],
        reorder=REORDERINGS[trial.reorder],
    )
    chunks = trial.chain.chunks()
    stream.open(leave)
    try:
        while fed < items:
            room.clear()
            more = max(0, min(items - fed, backlog - (fed - markers.begun)))
            fed += more
            for chunk in islice(chunks, more):
                stream.submit(chunk)
            room.wait(1.0)
        stream.finish()
    finally:
        stream.close()
    return markers.shown()


def schedule_of(trial: Trial) -> str | Schedule:
    """The trial's schedule. QST's threshold is in records: `THRESHOLD` chunks per worker."""
    if trial.schedule == "qst":
        capacity = THRESHOLD * trial.workers * trial.chain.records
        return partial(queue_size_throttling, capacity=capacity)
    return trial.schedule


def summary(trial: Trial, rounds: Sequence[Shown]) -> Result:
    """A trial and its rounds, for the report. Rates count input records."""
    return {
        **dict(trial.facts),
        "workers": trial.workers,
        "schedule": trial.schedule,
        "queue": trial.queue,
        "reorder": trial.reorder,
        "records_per_s": [shown.items_per_s * trial.chain.records for shown in rounds],
        "latency_ms": [shown.latency_ms for shown in rounds],
        "p99_ms": [shown.p99_ms for shown in rounds],
    }


def line(group: str, result: Result) -> str:
    """A trial's result as a line of text: its facts, the medians of its rounds, and their range."""
    facts = [f"{name} {result[name]}" for name in result if name not in FIGURES]
    rates = Sample.of(result["records_per_s"])
    figures = f"{rates.median:,.0f} records/s ({rates.low:,.0f} to {rates.high:,.0f})"
    if "latency_ms" in result:
        figures += f", {Sample.of(result['latency_ms']).median:.3g} ms"
    return f"{group}: {', '.join(facts)}: {figures}"


def best(results: Sequence[Result]) -> Result:
    """The trial with the highest throughput, by the median of its rounds.

    >>> best([{"records_per_s": [1.0, 9.0, 2.0]}, {"records_per_s": [3.0, 3.0, 3.0]}])
    {'records_per_s': [3.0, 3.0, 3.0]}
    """
    return max(results, key=lambda result: statistics.median(result["records_per_s"]))


def over(side: Result, other: Result, figure: str = "records_per_s") -> Sample:
    """One side divided by the other, round by round, since a round measures both shortly after each other.

    >>> over({"records_per_s": [8.0, 9.0, 6.0]}, {"records_per_s": [4.0, 3.0, 3.0]}).median
    2.0
    """
    return Sample.of([a / b for a, b in zip(side[figure], other[figure], strict=True)])
