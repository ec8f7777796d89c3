"""Replays of recorded runs: the same policy decides the same, or another policy decides."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.simulate import simulate
from penstock.control.elastic import Elastic, Steering
from penstock.control.events import (
    EpochDue,
    EpochRead,
    Event,
    HostLost,
    Steered,
    StepPlacement,
    StepRead,
)
from penstock.control.examine.arrivals import Arrivals
from penstock.control.examine.vitals import Work
from penstock.control.record import Opening, event_line, event_of, read
from penstock.driver import control_loop
from penstock.driver.journal_writer import JournalWriter, StartWriter, control_line
from penstock.errors import CheckpointError, SettingError
from penstock.model import HostId
from penstock.sim.replay import Difference, difference, recorded, replayed, wanted
from penstock.state.store.store import Store
from penstock.testing.thread_hosts import open_store
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.control_trial import Watchful
from tests.trials.ledger import LEDGER, SUMS

CAPACITY = 1_000.0
"""Assumed service rate of a host in records per second."""
EPOCH_MS = 250

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(simulate)


def _paced(rows: int, useful_ms: float, cpu: float | None = None) -> Work:
    return Work(rows, 1000 * rows / CAPACITY, cpu)


def _rows(count: int, hot: float = 0.0) -> list[list[dict[str, Any]]]:
    """Rows of two partitions, a share of them with one key."""
    rows = [
        {"who": "who-0" if n < hot * count else f"who-{n}", "op": "add", "v": 1}
        for n in range(count)
    ]
    return [rows[::2], rows[1::2]]


def _until(on: MiniCluster, event: str, rows: list[list[dict[str, Any]]]) -> None:
    """Run epochs until the journal has an entry of this kind."""
    for _ in range(30):
        on.now_ms += EPOCH_MS
        on.run(rows)
        if any(entry.event == event for _, entry in on.journal):
            return
    raise AssertionError(f"no {event!r} in the journal")


def event_writer(store: Store, started_ms: float = 0.0) -> StartWriter[Opening | Event]:
    return StartWriter(store, "events", started_ms, control_line)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a recorded run with a burst, a lost host, a hot key and changed settings."""
    folder = tmp_path_factory.mktemp("checkpoint")
    store = Store(f"{folder}/penstock")
    store.write_flow({"format": 1, "steps": []})
    events, journal = event_writer(store), JournalWriter(store)
    elastic = Elastic("switch", at_most=4)
    with (
        patch.object(control_loop, "Work", _paced),
        cluster(LEDGER, store.uri, elastic=elastic, warm_epochs=2, record=events) as on,
    ):
        for _ in range(8):
            on.now_ms += EPOCH_MS
            on.run(_rows(60))
        _until(on, "began", _rows(700))
        _until(on, "done", _rows(700))
        on.jobs.kill("ledger/1")
        _until(on, "host lost", _rows(100))
        assert on.control is not None
        on.control.steer(Steering(latency="900 ms", at_most=5, dry_run=False))
        _until(on, "hot key", _rows(900, hot=0.9))
        for _, entry in on.journal:
            journal(entry)
    for writer in (events, journal):
        writer.stop()
    return folder


def test_every_decision_is_reproduced_to_the_letter(checkpoint: Path) -> None:
    run = recorded(open_store(f"{checkpoint}/penstock"))
    events = {entry.event for entry in run.journal}
    assert {"decided", "began", "done", "host lost", "setting", "hot key"} <= events
    assert len(run.journal) > 10
    assert replayed(run) == run.journal


def test_another_policy_decides_otherwise_on_the_same_events(checkpoint: Path) -> None:
    run = recorded(open_store(f"{checkpoint}/penstock"))
    still = wanted(replayed(run, "static(2)"))
    assert wanted(run.journal) != still
    differing = difference(run.journal, replayed(run, "static(2)"))
    assert isinstance(differing, Difference)


def test_the_command_says_whether_it_is_equal(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["--replay", str(checkpoint)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "The replay is identical to the recorded journal."
    shown = json.loads(
        CliRunner()
        .invoke(app, ["--replay", str(checkpoint), "--json"], catch_exceptions=False)
        .stdout
    )
    assert shown["equal"]
    assert shown["difference"] is None
    assert "scale out" in " ".join(entry["text"] for entry in shown["journal"])


def test_the_command_shows_policies_side_by_side(checkpoint: Path) -> None:
    arguments = ["--replay", str(checkpoint), "--policy", "static(2)", "--policy", "ds2"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["time", "step", "recorded", "static(2)", "ds2"]
    out = next(row for row in rows if row.startswith("scale out  all"))
    assert int(out.split()[3]) > 0
    output = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout
    assert [column["policy"] for column in json.loads(output)] == ["recorded", "static(2)", "ds2"]


def test_a_journal_that_differs_ends_with_1(checkpoint: Path, tmp_path: Path) -> None:
    with patch("penstock.sim.replay.replayed", lambda run: run.journal[:-1]):
        result = CliRunner().invoke(app, ["--replay", str(checkpoint)], catch_exceptions=False)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "replayed: nothing"


def test_a_run_that_cannot_be_replayed_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    def replay(*arguments: str) -> None:
        CliRunner().invoke(app, ["--replay", *arguments], catch_exceptions=False)

    with pytest.raises(CheckpointError):
        replay(str(tmp_path / "nowhere"))
    Store(f"{tmp_path}/penstock").write_flow({"format": 1, "steps": []})
    with pytest.raises(SettingError, match="no recorded events"):
        replay(str(tmp_path))
    with pytest.raises(SettingError, match="a workload and a replay"):
        replay(str(checkpoint), "sine")


def test_a_custom_policy_object_is_reported(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/penstock")
    events = event_writer(store)
    with cluster(SUMS, store.uri, elastic=Elastic(Watchful()), record=events) as on:
        on.run([[{"k": 1, "v": 1}], []])
    events.stop()
    run = recorded(store)
    with pytest.raises(SettingError, match="Watchful"):
        replayed(run)
    assert replayed(run, "switch") == ()


def test_a_record_without_its_beginning_is_refused() -> None:
    for lines in ([], [event_line(EpochDue(1.0))]):
        with pytest.raises(CheckpointError, match="first line of the recorded events is missing"):
            read(lines)


@pytest.mark.parametrize("rows", [0, 3])
def test_events_are_read_as_they_were_written(rows: int) -> None:
    odd = np.array([0.1, math.inf, math.nan, 1e-300])
    counts = np.random.default_rng(1).random((rows, 4))
    arrivals = Arrivals(7, counts, 1.1, math.nan, odd)
    hosts = (HostId("sum/0"), HostId("sum/1"))
    read = StepRead(arrivals, StepPlacement(hosts, np.array([0, 0, 1, 1]), 2))
    again = event_of(event_line(EpochRead(1 / 3, 9, {"sum": read})))
    assert isinstance(again, EpochRead)
    assert again.now_ms == 1 / 3
    step_read = again.steps["sum"]
    assert step_read.arrivals.counts.tolist() == counts.tolist()
    assert step_read.arrivals.counts.shape == (rows, 4)
    assert repr(step_read.arrivals.waited_ms.tolist()) == repr(odd.tolist())
    assert math.isnan(step_read.arrivals.age_ms)
    assert step_read.placement.hosts == hosts
    assert step_read.placement.owner.tolist() == [0, 0, 1, 1]
    lost = HostLost(2.5, 4, "inf", HostId("nan"), (1, 2), True)
    assert event_of(event_line(lost)) == lost
    steered = Steered(1.0, Steering(alert="100ms", margin=0.3, dry_run=False))
    assert event_of(event_line(steered)) == steered


def test_events_of_old_starts_are_forgotten(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/penstock")
    recording: list[Opening | Event] = []
    with cluster(SUMS, store.uri, elastic=Elastic(), record=recording.append):
        pass
    opening = next(item for item in recording if isinstance(item, Opening))
    for start in range(8):
        writer = event_writer(store, float(start))
        writer(replace(opening, started_ms=float(start)))
        writer.stop()
    assert recorded(store).opening.started_ms == 7
    assert len(store.files.below("events")) == 5
