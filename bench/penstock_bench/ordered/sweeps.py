"""What `penstock bench ordered` runs: every comparison as a list of trials.

The five queries have the operators of the paper's table 1, with costs and selectivities that such
queries have; the numbers of the other groups are those of its evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock_bench.ordered.chains import Matrices, Op, TrialChain, matrices
from penstock_bench.ordered.queries import HostLoad
from penstock_bench.ordered.trials import Trial

SCHEDULES = ("qst", "lp", "et", "ct")
QUEUES = ("hybrid", "partitioned")
REORDERS = ("nonblocking", "lock")
QUERY_BACKLOG = 4
"""ET leaves a light operator alone until its worklist takes as long as what waits at the entrance:
were that much, nothing would leave before the end of a trial."""
HOT = 0.1
"""The sigma with the most skew: nearly all keys fall into a few parts."""
RECORDS = 200
"""Records of a chunk of a query. With 50, sixteen workers keep the interpreter busy all of the time
(measured: a whole core), and what is compared is Python, not schedules; with 200 it is half of a core."""

QUERIES = {
    1: TrialChain(
        (
            Op("stateless", 20, 0.6),
            Op("keyed", 40, 1.5),
            Op("keyed", 30, 0.3),
            Op("global", 4, 0.1),
        ),
        records=RECORDS,
    ),
    2: TrialChain(
        (
            Op("stateless", 15, 0.7),
            Op("keyed", 30, 0.4),
            Op("stateless", 40, 8.0),
            Op("keyed", 10, 0.2),
            Op("global", 6, 0.1),
        ),
        records=RECORDS,
    ),
    3: TrialChain(
        (
            Op("stateless", 15, 0.8),
            Op("keyed", 50, 0.3),
            Op("keyed", 30, 0.2),
        ),
        records=RECORDS,
    ),
    4: TrialChain(
        (
            Op("stateless", 15, 0.9),
            Op("keyed", 40, 0.2),
            Op("stateless", 20),
            Op("global", 10, 0.1),
        ),
        records=RECORDS,
    ),
    15: TrialChain(
        # Ten categories: no more than ten parts.
        (
            Op("stateless", 15, 0.5),
            Op("stateless", 20),
            Op("keyed", 40, 0.1, parts=10),
        ),
        records=RECORDS,
    ),
}
LIGHT = TrialChain((Op("stateless", 20),), records=100, delivery_us=1)
"""What a lock costs here is that others wait while one worker delivers: how much depends on how long
that takes. So the same is also run with a delivery that takes no time."""
MANY = TrialChain((Op("stateless", 100, 50, outputs=50), Op("keyed", 100)), records=10)
_MULTIPLICATION_US = 5
REAL = TrialChain(
    (Op("stateless", 40), Op("keyed", 40), Op("global", 5)),
    records=32,
    cost=lambda shape: Matrices(round(shape.us / _MULTIPLICATION_US)),
    values=matrices,
)
HOST_LOAD = HostLoad(chunks=16, chunk_rows=8_192, parts=16, us=20)


def keyed(us: float, sigma: float | None = None) -> TrialChain:
    """One keyed operator."""
    return TrialChain((Op("keyed", us),), sigma=sigma)


@dataclass(frozen=True)
class OrderedScale:
    """How much of it to run."""

    rounds: int = 3
    seconds: float = 1.0
    query_rounds: int = 2
    query_seconds: float = 0.8
    query_workers: tuple[int, ...] = (2, 4, 8, 16)
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    sigmas: tuple[float, ...] = (2.0, 1.0, 0.5, 0.2, HOT)
    costs_us: tuple[float, ...] = (10, 100, 1_000, 10_000)
    real_seconds: float = 2.0
    flow_epochs: int = 20
    """Epochs in each round, for each step."""
    triggers: tuple[int, int] = (10, 25)
    """Triggers on Spark to get warm, and to measure, for each side in each round."""
    host_workers: tuple[int, ...] = (4, 8)
    host_load: HostLoad = HOST_LOAD

    @property
    def most(self) -> int:
        return max(self.workers)


FULL = OrderedScale()
QUICK = OrderedScale(
    rounds=1,
    seconds=0.25,
    query_rounds=1,
    query_seconds=0.25,
    query_workers=(4, 8),
    workers=(1, 16),
    sigmas=(2.0, HOT),
    costs_us=(100, 1_000),
    real_seconds=0.5,
    flow_epochs=4,
    triggers=(3, 6),
    host_workers=(8,),
    host_load=HostLoad(chunks=8, chunk_rows=4_096, parts=8, us=20),
)


def trials(scale: OrderedScale) -> list[Trial]:
    """All of them; what is compared stands side by side."""
    return [
        *_queries(scale),
        *_skews(scale),
        *_costs(scale),
        *_reorders("light", LIGHT, scale.workers, scale),
        *_reorders("light, free delivery", replace(LIGHT, delivery_us=0.0), (scale.most,), scale),
        *_reorders("selectivity", MANY, scale.workers, scale),
        *_real(scale),
    ]


def host_sides(scale: OrderedScale) -> list[tuple[int, str]]:
    """(workers, schedule) of the hosts that run the real queries."""
    return [(workers, schedule) for workers in scale.host_workers for schedule in SCHEDULES]


def _queries(scale: OrderedScale) -> Iterator[Trial]:
    """Every schedule, and beside the best one every other queue and reordering."""
    sides: list[dict[str, Any]] = [
        *({"schedule": schedule} for schedule in SCHEDULES),
        {"queue": "partitioned"},
        {"reorder": "lock"},
        {"reorder": "none"},
    ]
    for query, chain in QUERIES.items():
        for workers in scale.query_workers:
            for side in sides:
                facts = (("query", query),)
                yield Trial(
                    *("queries", facts, chain, workers),
                    seconds=scale.query_seconds,
                    backlog=QUERY_BACKLOG,
                    **side,
                )


def _skews(scale: OrderedScale) -> Iterator[Trial]:
    for sigma in scale.sigmas:
        for workers in scale.workers if sigma in (HOT, max(scale.sigmas)) else (scale.most,):
            for queue in QUEUES:
                yield Trial(
                    *("skew", (("sigma", sigma),), keyed(1_000, sigma), workers),
                    queue=queue,
                    seconds=scale.seconds,
                )


def _costs(scale: OrderedScale) -> Iterator[Trial]:
    for us in scale.costs_us:
        for queue in QUEUES:
            yield Trial(
                *("cost", (("cost_us", us),), keyed(us), min(8, scale.most)),
                queue=queue,
                seconds=scale.seconds,
            )


def _reorders(
    group: str, chain: TrialChain, numbers: tuple[int, ...], scale: OrderedScale
) -> Iterator[Trial]:
    for workers in numbers:
        for reorder in REORDERS:
            yield Trial(group, (), chain, workers, reorder=reorder, seconds=scale.seconds)


def _real(scale: OrderedScale) -> Iterator[Trial]:
    for workers in (1, 2):
        yield Trial("real", (), REAL, workers, seconds=scale.real_seconds)
