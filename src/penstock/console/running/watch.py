"""`penstock ctl watch`: a page that follows a running query.

It polls the query twice a second, which changes nothing in the query. While the query does not answer, the
page keeps its last content and says so. It ends when the query ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.live import Live

from penstock.console.history import LatencyHistory, SeenEpoch
from penstock.console.running.page import Look, draw, line
from penstock.console.running.query import RunningQuery
from penstock.console.running.view import sla_of
from penstock.driver.progress import Latency
from penstock.errors import SettingError

_FRAME_S = 0.5
_LINE_S = 2.0
"""Seconds between two lines, where there is no terminal to draw on."""
_BAR_MS = 2_000
"""Milliseconds that one bar of the latency history covers."""
_ENTRIES = 8
"""Journal entries on the page."""
_WINDOW_MS = 1_000
"""Milliseconds over which latency is averaged if there is no SLA."""


class Watcher:
    """Polls a query, and keeps what a single poll does not contain: latency history and idle time."""

    def __init__(self, checkpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._checkpoint, self._clock = checkpoint, clock
        self._query = RunningQuery(checkpoint)
        self._history = LatencyHistory(_BAR_MS)
        self._epoch: int | None = None
        self._since_s = clock()
        self._newest: Look | None = None

    def look(self) -> Look | None:
        """The query as it is now, or as it was when it last answered; None if it has ended.

        Raises `SettingError` if it has died, or has never answered.
        """
        try:
            answer, entries = self._query.status(), self._query.journal(_ENTRIES)
        except SettingError as silent:
            return self._without_answer(silent)
        control = answer.get("control")
        window_ms = _WINDOW_MS if control is None else sla_of(control).window_ms
        if seen := seen_epoch(answer["progress"]):
            self._history.take(seen, window_ms)
        if answer["status"]["epoch"] != self._epoch:
            self._epoch, self._since_s = answer["status"]["epoch"], self._clock()
        self._newest = Look(answer, tuple(entries), self._history, self._idle_s)
        return self._newest

    def _without_answer(self, silent: SettingError) -> Look | None:
        if self._query.has_ended():
            return None
        if self._newest is None:
            raise silent
        # It may have been restarted, and listen at another address now.
        self._query = RunningQuery(self._checkpoint)
        shown = self._newest
        return Look(shown.answer, shown.entries, shown.history, self._idle_s, silent.message)

    @property
    def _idle_s(self) -> float:
        return self._clock() - self._since_s


def seen_epoch(progress: dict[str, Any] | None) -> SeenEpoch | None:
    """The newest epoch of a progress report; None before the first epoch, or if it had no rows."""
    if progress is None or progress["latency"] is None:
        return None
    done_ms, latency = progress["started_ms"] + progress["sink_ms"], Latency(**progress["latency"])
    return SeenEpoch(progress["epoch"], done_ms, progress["rows"], latency)


def watch(
    checkpoint: str, console: Console, once: bool, pause: Callable[[float], object] = time.sleep
) -> None:
    """Show the query until it ends or Ctrl-C: as a page on a terminal, as lines elsewhere."""
    watcher, title = Watcher(checkpoint), f"penstock: {checkpoint}"
    screen = console.is_terminal and not console.is_dumb_terminal
    with ExitStack() as shown:
        live = None
        while (look := watcher.look()) is not None:
            if once:
                console.print(draw(title, look, console.width))
                return
            if screen and live is None:
                live = shown.enter_context(Live(console=console, auto_refresh=False))
            if live is not None:
                live.update(draw(title, look, console.width), refresh=True)
            else:
                console.print(line(look), soft_wrap=True, highlight=False, markup=False)
            pause(_FRAME_S if screen else _LINE_S)
    console.print(f"the query on {checkpoint} has ended", highlight=False, markup=False)
