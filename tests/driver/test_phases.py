"""The account of a trigger: one path through all processes, whose phases add up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.driver.phases import PATH, PHASES, SparkTrigger, path_of, summed
from penstock.observe.trace import Trace
from penstock.spans import MOST, Laps, Span
from tests.courier.test_report import FLOW, PARTS
from tests.trials.cluster import cluster

TOOK = {
    "latestOffset": 1.0,
    "walCommit": 9.0,
    "getBatch": 1.0,
    "queryPlanning": 4.0,
    "addBatch": 70.0,
    "commitOffsets": 8.0,
    "triggerExecution": 95.0,
}


def laps(where: str, start_ms: float, channel: int = -1, **took_ms: float) -> list[Span]:
    """Spans of one process, one after the other."""
    spans = []
    for name, took in took_ms.items():
        spans.append(Span(7, where, name.replace("_", " "), start_ms, took, channel))
        start_ms += took
    return spans


DRIVER = laps("driver", 20.0, prepare=3.0, write=50.0, seal=4.0, manifest=2.0, after=1.0)
FIRST = laps(
    "courier 0", 35.0, start=1.0, read=3.0, send=1.0, answer=3.0, output=1.0, hand_over=1.0
)
LAST = laps("courier 1", 36.0, start=1.0, read=5.0, combine=2.0, send=1.0, answer=12.0)
OUTPUT = laps("courier 1", 57.0, output=1.0, hand_over=6.0)
NEAR = laps("host sum/0", 37.0, 1, receive=9.0, wait=0.0, apply=1.0, answer=1.0)
FAR = laps("host sum/1", 37.0, 1, receive=10.0, wait=2.0, apply=3.0, delta=1.0, answer=2.0)
OTHER = laps("host sum/1", 36.0, 0, receive=6.0, apply=30.0)
TASKS = [Span(7, "spark", "task", 30.0, 12.0, 0), Span(7, "spark", "task", 31.0, 36.0, 1)]
EVERY = [*DRIVER, *FIRST, *LAST, *OUTPUT, *NEAR, *FAR, *OTHER]


def test_the_path_follows_the_last_courier_and_the_last_host_that_answered_it() -> None:
    assert summed(path_of(EVERY, SparkTrigger(7, 0.0, TOOK, TASKS), next_ms=97.0)) == {
        "offsets": 1.0,
        "offset log": 9.0,
        "planning": 5.0,
        "callback": 5.0,
        "prepare": 3.0,
        "job start": 8.0,
        "JVM to Python": 5.0,
        "courier start": 1.0,
        "courier read": 5.0,
        "courier combine": 2.0,
        "courier send": 1.0,
        "wire": 2.0 + 2.0,
        "host wait": 2.0,
        "host apply": 3.0,
        "host delta": 1.0,
        "host answer": 2.0,
        "courier output": 1.0,
        "Python to JVM": 6.0,
        "sink": 3.0,
        "job end": 6.0,
        "seal": 4.0,
        "manifest": 2.0,
        "after": 1.0,
        "return": 7.0,
        "commit log": 8.0,
        "between": 2.0,
    }


def test_the_jobs_of_a_sink_are_its_own_phase() -> None:
    """A sink that keeps the output writes it in a second job. Tasks come in any order."""
    second = Span(7, "spark", "task", 67.5, 4.0, 1)
    phases = summed(path_of(EVERY, SparkTrigger(7, 0.0, TOOK, [second, *TASKS]), next_ms=97.0))
    assert (phases["JVM to Python"], phases["sink"], phases["job end"]) == (5.0, 7.5, 1.5)


def test_without_sparks_tasks_the_end_of_the_job_is_the_sinks() -> None:
    """So `query.progress` has the phase too."""
    phases = summed(path_of(EVERY, SparkTrigger(7, 0.0, TOOK), next_ms=97.0))
    assert (phases["Python to JVM"], phases["sink"]) == (6.0, 9.0)
    assert "job end" not in phases


@pytest.mark.parametrize(
    ("deltas", "written", "seal"),
    [
        ([(60.0, 12.0)], None, 4.0),  # while the sink worked
        ([(60.0, 15.0), (60.0, 5.0)], 2.0, 2.0),
        ([(74.0, 2.0)], 2.0, 2.0),
        ([(60.0, 99.0)], 4.0, None),
    ],
)
def test_a_delta_counts_as_far_as_the_driver_waits_for_it(
    deltas: list[tuple[float, float]], written: float | None, seal: float | None
) -> None:
    late = [
        Span(7, f"host sum/{n}", "write delta", start, took)
        for n, (start, took) in enumerate(deltas)
    ]
    phases = summed(path_of([*EVERY, *late], SparkTrigger(7, 0.0, TOOK, TASKS), next_ms=97.0))
    assert (phases.get("host write delta"), phases.get("seal")) == (written, seal)
    assert sum(phases.values()) == pytest.approx(97.0)


@pytest.mark.parametrize("spans", [EVERY, DRIVER, [*DRIVER, *LAST], [*LAST, *FAR], []])
@pytest.mark.parametrize("tasks", [TASKS, []])
def test_phases_add_up_whatever_is_missing(spans: list[Span], tasks: list[Span]) -> None:
    path = path_of(spans, SparkTrigger(7, 0.0, TOOK, tasks), next_ms=97.0)
    assert sum(summed(path).values()) == pytest.approx(97.0)
    assert set(summed(path)) <= set(PHASES)
    for before, after in pairwise(path):
        assert before.end_ms == pytest.approx(after.start_ms)


def test_an_epoch_that_was_run_again_follows_each_run() -> None:
    again = laps("driver", 20.0, prepare=3.0, write=10.0, failed_run=5.0) + laps(
        "driver", 38.0, prepare=2.0, write=30.0, seal=4.0
    )
    early = laps("courier 0", 25.0, start=1.0, read=3.0)
    phases = summed(path_of([*again, *early], SparkTrigger(7, 0.0, TOOK), next_ms=97.0))
    assert (phases["failed run"], phases["courier read"], phases["prepare"]) == (5.0, 3.0, 5.0)
    assert sum(phases.values()) == pytest.approx(97.0)


def test_many_laps_are_added_up() -> None:
    now = iter(range(10_000))
    many = Laps(1, "courier 0", clock_ms=lambda: float(next(now)))
    for _ in range(MOST):
        many.lap("read")
        many.lap("combine")
    spans = many.take()
    assert len(spans) == MOST + 2
    assert sum(span.took_ms for span in spans) == 2 * MOST
    assert many.take() == ()


def test_all_processes_of_an_epoch_write_down_spans(tmp_path: Path) -> None:
    with cluster(FLOW, str(tmp_path), hosts=2) as on:
        on.run(PARTS)  # kernels may have to be compiled in the first
        first, second = on.run(PARTS), on.run(PARTS)
    spans = [span for span in (*first.spans, *second.spans) if span.epoch == first.epoch]
    names: dict[str, set[str]] = {}
    for span in spans:
        names.setdefault(span.where, set()).add(span.name)
        assert span.took_ms >= 0
    assert {"prepare", "write", "seal", "manifest"} <= names["driver"]
    for number in range(2):
        # What comes after the report comes with the next one.
        assert {"start", "open", "read", "send", "answer"} <= names[f"courier {number}"]
    for host in ("sum/0", "sum/1", "about/0", "about/1"):
        assert {"receive", "wait", "apply", "answer", "write delta"} <= names[f"host {host}"]
    begun = min(span.start_ms for span in spans) - 5.0
    trigger = SparkTrigger(first.epoch, begun, {"triggerExecution": 100_000.0})
    phases = summed(path_of(spans, trigger))
    assert sum(phases.values()) == pytest.approx(100_000.0)
    assert {"courier read", "host apply", "wire", "sink", "manifest"} <= set(phases)
    assert {"seal", "host write delta"} & set(phases)


def test_a_trace_opens_in_perfetto() -> None:
    """Chrome's format: complete events with microseconds, and a name for each process."""
    triggers = [SparkTrigger(7, 0.0, TOOK, TASKS), SparkTrigger(8, 97.0, TOOK)]
    trace = Trace([path_of(EVERY, triggers[0], 97.0)], EVERY)
    events = json.loads(trace.to_chrome())["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert list(names.values())[:2] == [PATH, "driver"]
    assert {"courier 0", "host sum/1"} <= set(names.values())
    phases = [event for event in events if names.get(event["pid"]) == PATH and event["ph"] == "X"]
    assert sum(event["dur"] for event in phases) == 97_000
    assert {event["args"]["epoch"] for event in phases} == {7}
    assert trace.trigger_ms == sum(trace.phases.values()) == 97.0
