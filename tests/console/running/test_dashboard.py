"""`penstock dashboard`, for a query that runs in another process and for one that has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from penstock.console.dashboard import serve as serve_dashboard
from penstock.console.dashboard import shown
from penstock.console.running import recording as remote
from penstock.control.journal.entry import Entry
from penstock.driver.journal_writer import StartWriter
from penstock.errors import SettingError
from penstock.observe.recording import KeptRecording, line_of
from penstock.state.store.store import FORMAT, Store
from tests.console.running.steered_query import TOKEN, Serve, interrupted, interruptible, step
from tests.observe.dashboard.burst import START_MS, burst


def keep(store: Store, recording: KeptRecording) -> None:
    """Write a recording into a checkpoint."""
    writer = StartWriter(store, "moments", recording.facts.started_ms, line_of)
    writer(recording.facts)
    for moment in recording.kept:
        writer(moment)
    writer.stop()


def ended(store: Store) -> None:
    steps = [{"id": "clicks", "slots": 64, "keys": [], "state": []}]
    store.write_flow({"format": FORMAT, "id": "f00d", "steps": steps})
    keep(store, burst(20))


def test_a_running_query_is_shown_and_steered(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_AT_ONCE", 7)
    query = serve(clicks=step("good"))
    query.recording = burst(20)
    query.journal = [Entry(START_MS + 5, 1, "clicks", "host lost", "clicks/1: its process ended")]
    said: list[str] = []

    def look() -> None:
        address, _, token = said[0].rpartition(" ")[2].partition("#token=")
        assert token == TOKEN
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}) as client:
            whole = client.get("/api/recording").json()
            assert len(whole["series"]["rate"]) == 20
            assert (whole["controllable"], len(whole["journal"])) == (True, 1)
            order = {"step": "clicks", "slots": "1-2", "to": "clicks/1"}
            assert client.post("/api/move", json=order).status_code == 200
            assert client.post("/api/scale", json={"step": "clicks", "hosts": 3}).status_code == 200
            assert client.post("/api/steer", json={"latency": "2s"}).status_code == 200
            refused = client.post("/api/steer", json={"margin": 3.0})
            assert "margin is 3" in refused.json()["error"]

    serve_dashboard(str(tmp_path), 0, False, say=said.append, wait=look)
    assert "running query" in said[0]
    assert query.orders[:3] == [
        {"step": "clicks", "slots": [1, 2], "to": "clicks/1"},
        {"step": "clicks", "hosts": 3},
        {"latency_ms": 2000},
    ]


def test_the_end_of_a_running_query_comes_from_its_checkpoint(
    serve: Serve, store: Store, tmp_path: Path
) -> None:
    query = serve(clicks=step("good"))
    whole = burst(20)
    query.recording = KeptRecording(whole.facts, whole.kept[:15], [])
    now = [0.0]
    found = shown(str(tmp_path), None)
    assert found.query is not None
    seen = remote.RemoteRecording(str(tmp_path), found.query, clock=lambda: now[0])
    assert (seen.running, len(seen.moments())) == (True, 15)
    keep(store, whole)
    query.end()
    assert len(seen.moments()) == 15  # not asked again within the same half second
    now[0] = 1.0
    assert (seen.running, len(seen.moments())) == (False, 20)


def test_a_query_that_serves_its_own_is_only_named(
    serve: Serve, store: Store, tmp_path: Path
) -> None:
    serve(clicks=step("good"))
    control = store.read_control()
    assert control is not None
    store.write_control(control | {"dashboard": "http://127.0.0.1:4711/"})
    said: list[str] = []
    serve_dashboard(str(tmp_path), 0, False, say=said.append, wait=lambda: pytest.fail("served"))
    assert said == [f"The query serves its dashboard at http://127.0.0.1:4711/#token={TOKEN}"]


def test_an_ended_query_is_shown_without_control(store: Store, tmp_path: Path) -> None:
    ended(store)
    said: list[str] = []

    def look() -> None:
        whole = httpx.get(said[0].rpartition(" ")[2] + "api/recording").json()
        assert (whole["running"], whole["controllable"]) == (False, False)
        assert len(whole["series"]["rate"]) == 20

    serve_dashboard(str(tmp_path), 0, False, START_MS, said.append, look)
    assert "#token" not in said[0]
    with pytest.raises(SettingError, match="no recording of a start"):
        serve_dashboard(str(tmp_path), 0, False, 1.0, said.append, look)


def test_ctrl_c_ends_the_command_cleanly(store: Store, tmp_path: Path) -> None:
    ended(store)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "dashboard", str(tmp_path), "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().rpartition(" ")[2].strip()
        assert httpx.get(address).status_code == 200
        code, _, errors = interrupted(process)
    assert (code, errors) == (130, "")
