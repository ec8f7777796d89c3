"""The phases of epochs when their progress is read, without Spark."""

from __future__ import annotations

from penstock.driver.phases import SparkTrigger
from penstock.spark.triggers import PhaseBook, trigger_of
from tests.observe.made_up import epoch

TOOK = {"addBatch": 60.0, "triggerExecution": 90.0}


def test_a_trigger_is_read_from_sparks_progress() -> None:
    trigger = trigger_of(
        {"batchId": 3, "timestamp": "1970-01-01T00:00:05.250Z", "durationMs": {"addBatch": 60}}
    )
    assert (trigger.epoch, trigger.started_ms) == (3, 5_250.0)
    assert trigger.durations_ms == {"addBatch": 60.0}


def test_spark_is_asked_seldom_and_for_new_epochs_only() -> None:
    now, asked = [0.0], list[int]()

    def triggers() -> list[SparkTrigger]:
        asked.append(len(known))
        return [SparkTrigger(number, 100.0 * number, TOOK) for number in known]

    known, progress = [0, 1, 2], [epoch(number, float(number)) for number in range(3)]
    book = PhaseBook(triggers, clock=lambda: now[0])
    assert [sum(e.phases.values()) for e in book.filled(progress)] == [100.0, 100.0, 0.0]
    known.append(3)
    progress.append(epoch(3, 3.0))
    assert [bool(e.phases) for e in book.filled(progress)] == [True, True, False, False]
    now[0] = 1.5
    assert [bool(e.phases) for e in book.filled(progress)] == [True, True, True, False]
    now[0] = 3.0
    book.filled(progress)
    assert asked == [3, 4]
