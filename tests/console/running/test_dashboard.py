"""`penstock dashboard`, for a query that runs in another process and for one that has ended."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from penstock.console.dashboard import serve as serve_dashboard
from penstock.console.dashboard import shown
from penstock.console.running import recording as remote
from penstock.console.running.query import RunningQuery
from penstock.control.journal.entry import Entry
from penstock.driver.journal_writer import StartWriter
from penstock.errors import SettingError
from penstock.observe.recording import KeptRecording, line_of
from penstock.state.store.store import FORMAT, Store
from tests.console.running.steered_query import (
    TOKEN,
    Serve,
    SteeredQuery,
    announce,
    interrupted,
    interruptible,
    step,
)
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


OWN = "http://127.0.0.1:4711/"
"""Address of a dashboard that a query serves itself."""


def serves_its_own(query: SteeredQuery, **more: Any) -> None:
    """Write a key that names a dashboard, with other fields as given."""
    facts = {"dashboard": OWN, "machine": socket.gethostname(), **more}
    pid = facts.pop("pid", os.getpid())
    announce(query.store, query.server.location, pid, **facts)


def test_a_query_that_serves_its_own_is_only_named(serve: Serve, tmp_path: Path) -> None:
    serves_its_own(serve(clicks=step("good")))
    said: list[str] = []
    serve_dashboard(str(tmp_path), 0, False, say=said.append, wait=lambda: pytest.fail("served"))
    assert said == [f"The query serves its dashboard at {OWN}#token={TOKEN}"]


@pytest.mark.parametrize("own", [True, False], ids=["serves its own", "serves none"])
def test_a_checkpoint_cannot_lead_the_token_to_another_address(
    own: bool, serve: Serve, store: Store, tmp_path: Path
) -> None:
    query = serve(clicks=step("good"))
    query.recording = burst(20)
    if own:
        serves_its_own(query)
    control = store.read_control()
    assert control is not None
    store.write_control(control | {"dashboard": "https://evil.example/"})
    found = shown(str(tmp_path), None)
    assert found.url == (OWN if own else "")


@pytest.mark.parametrize("more", [{"machine": "elsewhere"}, {"pid": 2**22 + 1}])
def test_the_dashboard_of_another_machine_or_a_dead_process_is_not_named(
    more: dict[str, Any], serve: Serve, store: Store, tmp_path: Path
) -> None:
    """Its port may belong to another program here."""
    query = serve(clicks=step("good"))
    serves_its_own(query, **more)
    control = store.read_control()
    assert control is not None
    store.write_control(control | {"pid": os.getpid()})
    assert RunningQuery(str(tmp_path)).dashboard() is None


def test_the_browser_gets_the_token_from_a_file_and_not_in_its_arguments(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves_its_own(serve(clicks=step("good")))
    given: list[str] = []
    monkeypatch.setattr(webbrowser, "open", given.append)
    pages: list[Path] = []

    def read(_: float) -> None:
        [argument] = given
        assert TOKEN not in argument
        page = Path(urlsplit(argument).path)
        assert [stat.S_IMODE(p.stat().st_mode) for p in (page, page.parent)] == [0o600, 0o700]
        assert f'content="0;url={OWN}#token={TOKEN}"' in page.read_text()
        pages.append(page)

    serve_dashboard(str(tmp_path), 0, True, say=lambda _: None, pause=read)
    assert [page.exists() for page in pages] == [False]


def test_without_a_token_the_browser_gets_the_address(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(store)
    given: list[str] = []
    monkeypatch.setattr(webbrowser, "open", given.append)
    serve_dashboard(str(tmp_path), 0, True, say=lambda _: None, wait=lambda: None)
    assert [urlsplit(url).scheme for url in given] == ["http"]


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
