"""Tells the demo's story in the terminal: what it is, what happens and why, and how it ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

import penstock as ps
from penstock.console.terminal import counted, promise
from penstock.control.journal.entry import Entry
from penstock.model import SLA
from penstock.observe import sentences
from penstock.observe.moment import Moment
from penstock_bench.demo.check import Checked
from penstock_bench.demo.display import Scene, draw, line
from penstock_bench.demo.phases import BURST, Story
from penstock_bench.demo.screening import SCREEN_S
from penstock_bench.demo.verdict import (
    Judged,
    Killed,
    backlog_ms,
    judged,
    silent_ms,
    stalled_ms,
)
from penstock_bench.live.load import LedSource

_FIRST_HOSTS = 4
"""Hosts at the start, and the least, unless the most are fewer."""
_FRAME_S = 0.25
_LINE_S = 5.0
"""Seconds between two lines, where there is no terminal to draw on."""
_GRACE_S = 2.0
"""Seconds after the story, besides the bound and a window of the SLA, in which the last bids may be done."""
_FOLD_MS = 3000.0
"""Milliseconds after a told move in which further ones, with the same hosts, are only counted."""
_WIDTH = 100
"""Most characters in a line of wrapped text."""


@dataclass(frozen=True)
class Demo:
    """The options of a demo."""

    story: Story
    auctions: int
    hosts: int
    """Most hosts."""
    sla: SLA
    output: Path
    """Folder for the checkpoint, the report and the log."""
    opens: bool
    """Whether to open the dashboard in a browser."""
    keep_open: bool = False
    """Whether to serve the dashboard after the end, until Ctrl-C."""

    @property
    def first_hosts(self) -> int:
        """Number of hosts at the start, which is also the minimum."""
        return min(_FIRST_HOSTS, self.hosts)

    @property
    def checkpoint(self) -> str:
        return str(self.output / "checkpoint")


def introduce(console: Console, demo: Demo) -> None:
    """Say what the demo does, and what is demanded of it."""
    story = demo.story
    console.print(Text("penstock demo: an SLA through a bad minute", "bold"))
    _block(
        console,
        f"Bids of the NEXMark benchmark arrive at {story.rate:,}/s for {story.seconds:g} s. For each "
        "auction the flow keeps the number of bids, the highest price and the sum. Each bid is screened "
        f"first, by a call that takes {SCREEN_S * 1000:g} ms. The call is simulated: the host sleeps for "
        "that time, as it would while it waits for an answer. So a host can take some 90 bids/s, and "
        "more hosts can take more, even on few cores.",
    )
    _block(
        console,
        f"The SLA: {promise(demo.sla)}. It must hold in every second after the warm-up, through a moving "
        f"hotspot, a burst of {BURST} times the load, and a killed host. Penstock may use "
        f"{demo.first_hosts} to {demo.hosts} hosts.",
    )


class Show:
    """Tells the story in the terminal while the query runs: phases, decisions, figures. Kills the host."""

    def __init__(
        self, console: Console, demo: Demo, query: ps.FlowQuery, source: LedSource
    ) -> None:
        self._console, self._demo, self._query, self._source = console, demo, query, source
        self._begin_ms = source.load_ms
        """End of the warm-up, in milliseconds since 1970."""
        self._told_ms = 0.0
        """Time of the newest entry of the journal that was told."""
        self._course: list[Entry] = []
        """The decision that is being carried out, and what became of it so far."""
        self._moved_ms = 0.0
        """Time of the newest moves that were told."""
        self._folded = 0
        """Moves since then that were not told."""
        self._moments: list[Moment] = []
        """All seconds of the query so far."""
        self._killed: Killed | None = None
        self._recovered = False
        self._late = False
        """Whether bids wait for longer than the bound, and that was told."""

    def watch(self) -> Killed | None:
        """Tell the story until it is over and its last bids are judged, or the query fails. Returns the
        kill."""
        console, story, query = self._console, self._demo.story, self._query
        screen = console.is_terminal and not console.is_dumb_terminal
        pause, phase, next_line = threading.Event(), None, 2.0 - story.warm_up_s
        with ExitStack() as shown:
            live = (
                shown.enter_context(Live(console=console, auto_refresh=False)) if screen else None
            )
            while query.is_active and not self._is_over(t_s := self._now_s):
                scene = self._scene(t_s)
                if scene.phase != phase:
                    phase = scene.phase
                    self._head(phase.title, phase.about)
                self._tell_decisions()
                if self._killed is None and t_s >= story.kill_s:
                    self._kill(scene)
                self._tell_recovery()
                self._tell_stall(scene)
                if live is not None:
                    live.update(draw(scene, console.width), refresh=True)
                elif t_s >= next_line:
                    console.print(line(scene))
                    next_line += _LINE_S
                pause.wait(_FRAME_S)
            self._tell_decisions()
            if live is not None:
                live.update(Text(""), refresh=True)
        return self._killed

    @property
    def _now_s(self) -> float:
        """Seconds since the end of the warm-up."""
        return time.time() - self._begin_ms / 1000

    def _is_over(self, t_s: float) -> bool:
        """Whether the story has ended, its windows are judged and the killed host has recovered, or there was
        enough time for that."""
        end_s, sla = self._demo.story.seconds, self._demo.sla
        if t_s >= end_s + (sla.latency_ms + sla.window_ms) / 1000 + _GRACE_S:
            return True
        # A window is judged with the first output after it.
        judged_s = t_s - (self._silent_ms + sla.window_ms) / 1000
        return self._recovered and judged_s >= end_s

    @property
    def _silent_ms(self) -> float:
        return silent_ms(self._query.progress, self._source.begun_ms, time.time() * 1000)

    @property
    def _waiting_ms(self) -> float:
        """How long bids have waited without any output."""
        if not self._moments:
            return 0.0
        newest = self._moments[-1]
        passed_ms = newest.time_ms - self._source.begun_ms
        waiting_ms = backlog_ms(self._source.arrivals, newest.backlog, max(0.0, passed_ms))
        return stalled_ms(self._silent_ms, waiting_ms)

    def _scene(self, t_s: float) -> Scene:
        demo, query = self._demo, self._query
        newest_ms = self._moments[-1].time_ms if self._moments else 0.0
        self._moments += query.recording.moments(newest_ms)
        return Scene(
            t_s=t_s,
            seconds=demo.story.seconds,
            phase=demo.story.at(t_s),
            sla=demo.sla,
            moments=self._moments,
            judged=judged(self._moments, demo.sla, self._begin_ms),
            url=query.dashboard_url,
            waiting_ms=self._waiting_ms,
        )

    def _head(self, title: str, about: str) -> None:
        self._console.print()
        self._console.print(Text(title, "bold blue"))
        _block(self._console, Text(about))

    def _tell_decisions(self) -> None:
        """Print what the controller did, and why, since the last call. Moves are told when they are done,
        unless a later decision replaced them."""
        for entry in self._query.recording.entries(self._told_ms):
            self._told_ms = entry.time_ms
            if entry.event == "decided" and entry.facts.get("treatments"):
                self._course = [entry]
            elif entry.event in ("began", "done", "failed"):
                self._course.append(entry)
                if entry.event != "began" and not self._is_one_more():
                    self._tell(self._course)
                if entry.event != "began":
                    self._course = []
            elif sentences.is_important(entry):
                self._tell([entry])

    def _is_one_more(self) -> bool:
        """Whether the moves that ended are soon after others, and change no number of hosts. Counts them."""
        decided = self._course[0]
        kinds = {treatment["kind"] for treatment in decided.facts.get("treatments", ())}
        if kinds <= {"balance"} and decided.time_ms < self._moved_ms + _FOLD_MS:
            self._folded += 1
            return True
        self._moved_ms = decided.time_ms
        return False

    def _tell(self, entries: Sequence[Entry]) -> None:
        """Print what these entries say; with moves, also the number of those that were not told."""
        for event in sentences.story(entries):
            text = event.text
            if self._folded and event.kind == "decided":
                text += f" (and {counted(self._folded, 'more move')} just before)"
                self._folded = 0
            if event.important:
                self._say((event.time_ms - self._begin_ms) / 1000, text, "cyan")

    def _kill(self, scene: Scene) -> None:
        """Kill the host with the most slots."""
        pids = self._query.status.hosts
        up = [host for host in scene.hosts if host.host in pids]
        if not up:
            return
        host = max(up, key=lambda host: host.slots)
        pid = pids[host.host]
        os.kill(pid, signal.SIGKILL)
        self._killed = Killed(host.host, pid, time.time() * 1000)
        text = f"killed host {host.host} (process {pid}) with {counted(host.slots, 'slot')}"
        self._say(scene.t_s, text, "bold red")

    def _tell_recovery(self) -> None:
        """Say once that the killed host's work is done."""
        if self._killed is None or self._recovered:
            return
        recovery_s = self._killed.recovery_s(self._query.progress)
        if recovery_s is not None:
            self._recovered = True
            t_s = (self._killed.time_ms - self._begin_ms) / 1000 + recovery_s
            text = f"the bids it was working on are done, {recovery_s:.1f} s after the kill"
            self._say(t_s, text, "green")

    def _tell_stall(self, scene: Scene) -> None:
        """Say once, for each time that it happens, that bids wait for longer than the bound."""
        late = scene.waiting_ms > scene.sla.latency_ms
        if late and not self._late:
            text = f"bids wait for {scene.waiting_ms / 1000:.1f} s now, longer than the bound"
            self._say(scene.t_s, text, "bold red")
        self._late = late

    def _say(self, t_s: float, text: str, style: str) -> None:
        """Print an event with its time: wrapped on a terminal, as one line elsewhere."""
        when = Text(f"{t_s:5.0f} s  ", "dim")
        if not self._console.is_terminal:
            self._console.print(Text.assemble(when, text))
            return
        grid = Table.grid(Column(no_wrap=True), Column())
        grid.add_row(when, Text(text, style))
        _block(self._console, grid)


def _block(console: Console, shown: RenderableType) -> None:
    """Print a text or table, wrapped at a width that is easy to read."""
    console.print(shown, soft_wrap=False, width=min(console.width, _WIDTH))


def _became(killed: Killed | None, recovery_s: float | None) -> Text:
    """What became of the host that was to be killed."""
    if killed is None:
        return Text(
            "No host was killed: none was up when it was due. So recovery is not shown.", "red"
        )
    if recovery_s is None:
        return Text(f"Killed host: {killed.host}, whose work was not done again in time.", "red")
    return Text(f"Killed host: {killed.host}, recovered after {recovery_s:.1f} s.")


def conclude(
    console: Console, demo: Demo, checked: Checked, result: Judged, killed: Killed | None,
    recovery_s: float | None,
) -> None:  # fmt: skip
    """Say what became of the SLA, the hosts and the answer, and what was kept."""
    console.print()
    console.print(Text("The result", "bold blue"))
    verdict = "met" if result.met else "missed"
    console.print(
        Text.assemble(
            (f"SLA {verdict}: ", "bold green" if result.met else "bold red"),
            f"kept in {result.kept:,} of {counted(result.windows, 'window')} after the warm-up. The worst "
            f"second had an average of {result.worst_ms:,.0f} ms; the bound is {demo.sla.latency_ms:,} ms.",
        )
    )
    if result.waiting_ms > demo.sla.latency_ms:
        console.print(
            f"At the end bids had waited for {result.waiting_ms / 1000:.1f} s, and were not done."
        )
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if not result.met and busy > 2 * cores:
        console.print(
            f"This machine is busy: {busy:.0f} processes want its {counted(cores, 'core')}. Try again when "
            "it has a core to spare."
        )
    console.print(
        f"Hosts: {result.mean_hosts:.1f} on average, {result.most_hosts} at most. "
        f"{counted(result.moved, 'slot')} moved, with state, while bids were processed."
    )
    console.print(_became(killed, recovery_s))
    console.print(Text(str(checked), "bold red" if checked.wrong else "bold green"))
    size = sum(path.stat().st_size for path in demo.output.rglob("*") if path.is_file())
    console.print(
        f"Kept in {demo.output} ({size / 2**20:.1f} MiB): checkpoint, log.txt, report.html"
    )
    console.print(f"Look again: penstock dashboard {demo.checkpoint}")
