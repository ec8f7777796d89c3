"""Spark's own times of a query's triggers: from its progress, and of the tasks of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock.driver.phases import SparkTrigger
from penstock.driver.progress import EpochProgress
from penstock.observe.trace import Trace
from penstock.spans import Span

_EVERY_S = 1.0
"""Least seconds between two questions to Spark."""
_KEPT = 100
"""Number of triggers that Spark keeps by default (`spark.sql.streaming.numRecentProgressUpdates`)."""


def trigger_of(progress: Mapping[str, Any]) -> SparkTrigger:
    """A trigger, from Spark's progress of it."""
    text = str(progress["timestamp"]).replace("Z", "+00:00")
    durations = {str(name): float(took) for name, took in dict(progress["durationMs"]).items()}
    started_ms = datetime.fromisoformat(text).timestamp() * 1000
    return SparkTrigger(int(progress["batchId"]), started_ms, durations)


def triggers_of(query: StreamingQuery) -> list[SparkTrigger]:
    """The newest triggers that had rows, in order."""
    known: dict[int, SparkTrigger] = {}
    for progress in query.recentProgress:
        # A trigger without rows has the number of the next epoch, and no epoch runs in it.
        if "addBatch" in progress["durationMs"]:
            known[int(progress["batchId"])] = trigger_of(progress)
    return list(known.values())


class PhaseBook:
    """Adds phases to the progress of epochs when it is read. Spark is asked once a second at most, if there
    is a new epoch: its answer takes the JVM some milliseconds.

    `triggers` returns the newest triggers; [] if there is no Spark query.
    """

    def __init__(
        self,
        triggers: Callable[[], Sequence[SparkTrigger]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._triggers, self._clock = triggers, clock
        self._newest, self._asked_s = -1, float("-inf")
        """Newest epoch for which Spark was asked, and when."""
        self._known: dict[int, dict[str, float]] = {}

    def filled(self, progress: Sequence[EpochProgress]) -> list[EpochProgress]:
        """The same epochs, with the phases of all whose next trigger has ended too."""
        due = self._clock() - self._asked_s >= _EVERY_S
        if progress and progress[-1].epoch != self._newest and due:
            self._newest, self._asked_s = progress[-1].epoch, self._clock()
            fresh = Trace.of(progress[-_KEPT:], self._triggers()).by_epoch()
            first = progress[0].epoch
            kept = {epoch: phases for epoch, phases in self._known.items() if epoch >= first}
            self._known = kept | fresh
        known = self._known
        return [replace(e, phases=known[e.epoch]) if e.epoch in known else e for e in progress]


def with_tasks(
    triggers: Iterable[SparkTrigger], tasks: Callable[[int], list[tuple[int, float, float]]]
) -> list[SparkTrigger]:
    """The triggers with the tasks of their epochs: `tasks` returns (partition, start, end) of each."""
    return [
        replace(
            trigger,
            tasks=[
                Span(trigger.epoch, "spark", "task", start_ms, end_ms - start_ms, partition)
                for partition, start_ms, end_ms in tasks(trigger.epoch)
            ],
        )
        for trigger in triggers
    ]
