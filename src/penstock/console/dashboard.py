"""`penstock dashboard`: shows a query in a web page, whether it runs or has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from penstock.console.browser import opened, whole_address
from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.console.running.query import RunningQuery
from penstock.console.running.recording import RemoteOrders, RemoteRecording
from penstock.errors import SettingError
from penstock.observe.dashboard.server import DashboardServer, listening
from penstock.observe.recording import Recording, kept_recording

_READ_S = 10.0
"""Seconds that a browser has to start and to read the file that leads it to the dashboard."""


@dataclass(frozen=True)
class Shown:
    """What `penstock dashboard` shows."""

    recording: Recording | None
    """None: the query serves its dashboard itself, at `url`."""
    query: RunningQuery | None = None
    """The running query; None if it has ended."""
    url: str = ""
    token: str = ""


def shown(checkpoint: str, started_ms: float | None) -> Shown:
    """What there is to show of a checkpoint: the running query, or else the newest recording, or that of one
    start."""
    store, _ = open_checkpoint(checkpoint)
    if started_ms is not None:
        return Shown(kept_recording(store, started_ms))
    try:
        query = RunningQuery(checkpoint)
    except SettingError:  # none runs, or it has died
        return Shown(kept_recording(store))
    if served := query.dashboard():
        return Shown(None, query, *served)
    return Shown(RemoteRecording(checkpoint, query), query, token=query.token)


def serve(
    checkpoint: str,
    port: int,
    opens: bool,
    started_ms: float | None = None,
    say: Callable[[str], object] = print,
    wait: Callable[[], object] | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Print the address of the dashboard, and serve it until `wait` returns; None: until Ctrl-C.

    If the query serves one itself, only print its address, and open it.
    """
    found = shown(checkpoint, started_ms)
    if found.recording is None:
        say(f"The query serves its dashboard at {whole_address(found.url, found.token)}")
        if opens:
            with opened(found.url, found.token):
                pause(_READ_S)
        return
    listens = listening(port or True)
    assert listens is not None
    orders = None if found.query is None else RemoteOrders(found.query)
    server = DashboardServer(listens, found.recording, orders, found.token)
    try:
        what = "the running query" if orders else "the recording of an ended query"
        say(f"Dashboard of {what}: {whole_address(server.url, found.token)}")
        say("Ctrl-C ends it.")
        with opened(server.url, found.token) if opens else nullcontext():
            (wait or threading.Event().wait)()
    finally:
        server.stop()
