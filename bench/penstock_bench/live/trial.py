"""A live trial: a flow on a generated load, on hosts with a fixed service rate, measured record by record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.journal.entry import Entry
from penstock.driver.progress import EpochProgress
from penstock.live.sources.source import LiveSource
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from penstock_bench import sides
from penstock_bench.live.latency import Began, Truth
from penstock_bench.live.load import Load, followed, led
from penstock_bench.live.query import GRACE_S, running, until
from penstock_bench.live.receipts import Receipts

SLOTS = 64
_LEAD_S = 8.0
"""Seconds of rows before the load, in which hosts warm up."""


@dataclass(frozen=True)
class Trial:
    """Parameters of a trial."""

    load: Load
    flow: Callable[[LiveSource], ps.Flow]
    seconds: float
    hosts: int | Mapping[str, int]
    paces: Mapping[str, float]
    """Step -> records per second that one of its hosts can process; the key "" stands for every step."""
    faults: tuple[Fault, ...] = ()
    partitions: int = 1


@dataclass(frozen=True)
class Tried:
    """The result of a trial. Times of epochs and journal are in milliseconds since 1970."""

    truth: Truth
    epochs: Sequence[EpochProgress]
    journal: Sequence[Entry]
    began: Began


def tried(spark: SparkSession, trial: Trial) -> Tried:
    """Run a trial in a session made by `bench_session`."""
    with sides.folder(spark) as folder:
        receipts = Receipts(folder, trial.load.read_counts)
        source = led(trial.load, _LEAD_S, Path(folder, "gate"), trial.partitions)
        settings = Settings(faults=(*_paced(trial.paces), *trial.faults), progress_kept=10_000)
        hosts = trial.hosts if isinstance(trial.hosts, int) else dict(trial.hosts)

        def start(checkpoint: str) -> ps.FlowQuery:
            sink = ps.foreach_arrow(receipts)
            flow = trial.flow(source)
            options: dict[str, Any] = {"mode": "live", "hosts": hosts, "settings": settings}
            return flow.start(sink, checkpoint=checkpoint, **options)

        with running(start, folder) as query:
            source.begin(int(time.time() * 1000))
            count = int(source.led.cumulative(1000 * (_LEAD_S + trial.seconds)))
            until(
                query,
                lambda: sum(epoch.rows for epoch in query.progress) >= count,
                _LEAD_S + trial.seconds + GRACE_S,
            )
            epochs, journal = query.progress, query.journal
        began = Began(source.load_ms, source.led.first)
        truth = followed(trial.load, source, receipts.received(), SLOTS, trial.seconds)
    return Tried(truth, epochs, journal, began)


def _paced(paces: Mapping[str, float]) -> list[Fault]:
    return [
        Fault("host.work", Pace(rate), {"step": step} if step else {}, hits=())
        for step, rate in paces.items()
    ]
