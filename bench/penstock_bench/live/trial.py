"""A live trial: a flow on a made-up load, on hosts of a set service rate, followed record by record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress
from penstock.live.sources.source import LiveSource
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from penstock_bench import sides
from penstock_bench.live.latency import Began, Truth
from penstock_bench.live.load import LedArrivals, LedSource, Load, followed, led
from penstock_bench.live.query import GRACE_S, running, until
from penstock_bench.live.receipts import Receipts

SLOTS = 64
_UP_S, _LEAD_S = 5.0, 10.0
"""Seconds until rows come, and until the load begins after that: hosts come up and warm up."""


@dataclass(frozen=True)
class Trial:
    """What is run."""

    load: Load
    flow: Callable[[LiveSource], ps.Flow]
    seconds: float
    hosts: int | Mapping[str, int]
    paces: Mapping[str, float]
    """Records a second that a host of each step takes; "": of every step."""
    faults: tuple[Fault, ...] = ()
    partitions: int = 1


@dataclass(frozen=True)
class Tried:
    """What came of it. Times of epochs and journal are milliseconds since 1970."""

    truth: Truth
    epochs: Sequence[EpochProgress]
    journal: Sequence[Entry]
    began: Began


def tried(spark: SparkSession, trial: Trial) -> Tried:
    """Run a trial, in a session of `bench_session`."""
    with sides.folder(spark) as folder:
        receipts = Receipts(folder, trial.load.told)
        sources: list[LedSource] = []

        def start(checkpoint: str) -> ps.FlowQuery:
            for old in Path(folder).glob("*.i64"):
                old.unlink()
            start_ms = int((time.time() + _UP_S) * 1000)
            sources.append(led(trial.load, _LEAD_S, start_ms, trial.partitions))
            hosts = trial.hosts if isinstance(trial.hosts, int) else dict(trial.hosts)
            return trial.flow(sources[-1]).start(
                ps.foreach_arrow(receipts),
                mode="live",
                checkpoint=checkpoint,
                hosts=hosts,
                settings=Settings(
                    faults=(*_paced(trial.paces), *trial.faults), progress_kept=10_000
                ),
            )

        with running(start, folder) as query:
            source = sources[-1]
            arrivals = source.arrivals
            assert isinstance(arrivals, LedArrivals)
            began = Began(source.start_ms + int(1000 * _LEAD_S), arrivals.first)
            count = int(arrivals.cumulative(1000 * (_LEAD_S + trial.seconds)))
            until(
                query,
                lambda: sum(epoch.rows for epoch in query.progress) >= count,
                _UP_S + _LEAD_S + trial.seconds + GRACE_S,
            )
            epochs, journal = query.progress, query.journal
        received = receipts.received()
    truth = followed(trial.load, source, received, SLOTS, trial.seconds)
    return Tried(truth, epochs, journal, began)


def _paced(paces: Mapping[str, float]) -> list[Fault]:
    return [
        Fault("host.work", Pace(rate), {"step": step} if step else {}, hits=())
        for step, rate in paces.items()
    ]
