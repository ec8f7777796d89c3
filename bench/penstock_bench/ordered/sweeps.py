"""The trials of `penstock bench ordered`: every comparison as a list of trials.

The five queries have the operators of the paper's table 1, with typical costs and selectivities. The
numbers of the other groups are those of its evaluation.
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
"""Items per worker that wait at the entrance of a query. ET leaves a light operator alone until its
worklist takes as long as the items at the entrance: with many, nothing would leave before a trial ends."""
HOT = 0.1
"""The sigma with the most skew: nearly all keys are in a few parts."""
RECORDS = 200
"""Records per chunk of a query. With 50, sixteen workers keep the interpreter busy all the time (measured:
a whole core), and the trials would compare Python, not schedules. With 200 it is half a core."""

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
        # Ten categories, so at most ten parts.
        (
            Op("stateless", 15, 0.5),
            Op("stateless", 20),
            Op("keyed", 40, 0.1, parts=10),
        ),
        records=RECORDS,
    ),
}
LIGHT = TrialChain((Op("stateless", 20),), records=100, delivery_us=1)
"""A light stateless operator. With a lock, other workers wait while one delivers, so the lock's cost depends
on the time of a delivery. The same chain therefore also runs with a delivery that takes no time."""
MANY = TrialChain((Op("stateless", 100, 50, outputs=50), Op("keyed", 100)), records=10)
_MULTIPLICATION_US = 5
REAL = TrialChain(
    (Op("stateless", 40), Op("keyed", 40), Op("global", 5)),
    records=32,
    cost=lambda shape: Matrices(round(shape.us / _MULTIPLICATION_US)),
    values=matrices,
)
CORES_LOAD = HostLoad(chunks=16, chunk_rows=65_536, parts=None, epochs=4)
"""Input of the queries without sleep: the defaults of a host."""
LIGHT_LOAD = HostLoad(chunks=1, chunk_rows=65_536, parts=None, epochs=16, pause_s=0.05)
"""Few rows, from time to time."""
HOST_LOAD = HostLoad(chunks=16, chunk_rows=8_192, parts=16, us=20)


def keyed(us: float, sigma: float | None = None) -> TrialChain:
    """A chain of one keyed operator that takes `us` microseconds per record."""
    return TrialChain((Op("keyed", us),), sigma=sigma)


@dataclass(frozen=True)
class OrderedScale:
    """Size of the benchmark."""

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
    """Epochs per round and step."""
    triggers: tuple[int, int] = (10, 25)
    """Spark triggers of warm-up and triggers that are measured, per round and side."""
    host_workers: tuple[int, ...] = (4, 8)
    host_load: HostLoad = HOST_LOAD
    cores_load: HostLoad = CORES_LOAD
    light_load: HostLoad = LIGHT_LOAD

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
    cores_load=HostLoad(chunks=4, chunk_rows=16_384, parts=None),
    light_load=HostLoad(chunks=1, chunk_rows=16_384, parts=None, epochs=8, pause_s=0.01),
)


def trials(scale: OrderedScale) -> list[Trial]:
    """All trials; those that are compared follow each other."""
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
    """Pairs (workers, schedule) of the hosts that run the real queries."""
    return [(workers, schedule) for workers in scale.host_workers for schedule in SCHEDULES]


def _queries(scale: OrderedScale) -> Iterator[Trial]:
    """Every schedule, and for CT every other queue and reordering."""
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
