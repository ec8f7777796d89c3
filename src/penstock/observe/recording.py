"""The recording of one start of a flow: facts about it, a moment for each second, and its journal.

A running query has one in memory (`recorder.Recorder`). A checkpoint keeps those of the newest starts
(`KeptRecording`), whether the query still runs or not. Of one that is longer than an hour, the newest hour is
read in full. Before it, seconds are joined to longer moments: no run takes more memory than two hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Protocol, runtime_checkable

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.control.money import HostPrice
from penstock.errors import CheckpointError, PenstockError, SettingError
from penstock.observe.moment import Moment, joined
from penstock.observe.tally import Tally
from penstock.state.store.start_files import files_by_start, start_lines
from penstock.state.store.store import Store

_NEWEST = 3_600
"""Moments that are kept in full: those of the newest hour."""
_OLDER = 3_600
"""Joined moments before them, at most."""


@dataclass(frozen=True)
class FlowFacts:
    """A started flow: what does not change while it runs."""

    name: str
    """Name of the query, or the id of its flow."""
    flow_id: str
    mode: str
    """"micro_batch" or "live"."""
    checkpoint: str
    started_ms: float
    """Start, in milliseconds since 1970."""
    slots: dict[str, int]
    """Keyed step -> number of its slots."""
    host_price: HostPrice = field(default_factory=HostPrice)
    version: str = ""
    """Release of Penstock that ran it."""


class Recording(Protocol):
    """The recording of one start of a flow. It grows while the query runs. Safe to use from any thread."""

    @property
    def facts(self) -> FlowFacts: ...

    @property
    def running(self) -> bool:
        """Whether more moments will come. This may ask another process, as all methods may: it is not for an
        event loop."""

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        """Moments that ended after `since_ms`, oldest first."""

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        """Entries of the journal after `since_ms`, oldest first."""


def line_of(item: FlowFacts | Moment) -> bytes:
    """The line of a recording's file."""
    return codec.encode({"facts": item} if isinstance(item, FlowFacts) else item)


@dataclass(frozen=True)
class KeptRecording:
    """A recording that was read from a checkpoint. It does not grow."""

    facts: FlowFacts
    kept: Sequence[Moment]
    journal: Sequence[Entry]
    running = False
    tally: Tally | None = None
    """The sums of all its moments, before they were joined; None if they are those of `kept`."""

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        return [moment for moment in self.kept if moment.time_ms > since_ms]

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        return [entry for entry in self.journal if entry.time_ms > since_ms]


def starts(store: Store) -> list[float]:
    """Starts of flows that a checkpoint has recordings of, in milliseconds since 1970, oldest first."""
    return sorted(float(start) for start in files_by_start(store, "moments"))


def whole_recording(recording: Recording) -> Recording:
    """The recording from its first second on. A running query has only its last hour in memory."""
    whole: Recording = recording.whole() if isinstance(recording, _Longer) else recording
    return whole


def tally_of(recording: Recording) -> Tally:
    """The sums of a recording."""
    known: Tally | None = getattr(recording, "tally", None)
    if known is not None:
        return known
    tally = Tally(recording.facts.started_ms)
    for moment in recording.moments():
        tally.take(moment)
    return tally


@runtime_checkable
class _Longer(Protocol):
    """A recording that is longer than what `moments` returns."""

    def whole(self) -> Recording: ...


def kept_recording(
    store: Store, started_ms: float | None = None, newest: Sequence[Moment] = ()
) -> KeptRecording:
    """Read a recording from a checkpoint: that of a start, or of the newest one. `newest` are moments in
    memory, which count instead of what is written from the first of them on."""
    files = files_by_start(store, "moments")
    if not files:
        raise SettingError(
            f"{store.uri} has no recording of a query",
            hint="start a flow with this checkpoint; it is recorded from its first second on",
        )
    by_time = {float(start): names for start, names in files.items()}
    chosen = max(by_time) if started_ms is None else started_ms
    if chosen not in by_time:
        raise SettingError(
            f"{store.uri} has no recording of a start at {chosen:.0f}",
            hint=f"use one of {', '.join(f'{start:.0f}' for start in sorted(by_time))}",
        )
    facts, written = _read(store, by_time[chosen])
    thinner, tally = Thinner(), Tally(facts.started_ms)
    for moment in _followed(written, newest):
        thinner.take(moment)
        tally.take(moment)
    ended_ms = min((start for start in by_time if start > chosen), default=float("inf"))
    entries = store.journal_entries(Entry, files=10_000)
    journal = [entry for entry in entries if facts.started_ms <= entry.time_ms < ended_ms]
    return KeptRecording(facts, thinner.moments, journal, tally=tally)


def _read(store: Store, names: Sequence[str]) -> tuple[FlowFacts, Iterator[Moment]]:
    """Facts and moments of a recording. Ends where its files are damaged, as after a full disk."""
    first = start_lines(store, names[:1])
    try:
        facts = codec.from_plain(codec.decode(next(first, b"{}"), dict)["facts"], FlowFacts)
    except (KeyError, PenstockError, OSError) as wrong:
        raise CheckpointError(
            f"the recording in {store.uri} has no readable beginning",
            hint="look at another start, or run the flow again",
        ) from wrong
    # Of a very long run, the files after the first one have gone. It begins with the oldest that is left.
    broken = len(names) > 1 and not names[1].endswith("/000001.jsonl-gz")
    rest = start_lines(store, names[1:])
    return facts, _decoded(rest if broken else chain(first, rest))


def _decoded(lines: Iterable[bytes]) -> Iterator[Moment]:
    with suppress(PenstockError, OSError, EOFError):
        for line in lines:
            yield codec.decode(line, Moment)


def _followed(written: Iterable[Moment], newest: Sequence[Moment]) -> Iterator[Moment]:
    """Moments that were written, until those in memory begin."""
    until_ms = newest[0].time_ms if newest else float("inf")
    yield from takewhile(lambda moment: moment.time_ms < until_ms, written)
    yield from newest


class Thinner:
    """Keeps the newest moments as they are, and joins older ones, so that there are never too many."""

    def __init__(self, newest: int = _NEWEST, older: int = _OLDER) -> None:
        self._whole: deque[Moment] = deque()
        self._newest, self._most = newest, older
        self._older: list[Moment] = []
        self._each, self._waiting = 1, list[Moment]()
        """Seconds of a joined moment, and those that wait to be joined to the next one."""

    @property
    def moments(self) -> list[Moment]:
        """All of them, oldest first."""
        return [*self._older, *self._waiting, *self._whole]

    def take(self, moment: Moment) -> None:
        """Take in the next moment."""
        self._whole.append(moment)
        if len(self._whole) > self._newest:
            self._join(self._whole.popleft())

    def _join(self, moment: Moment) -> None:
        self._waiting.append(moment)
        if len(self._waiting) < self._each:
            return
        self._older.append(joined(self._waiting))
        self._waiting.clear()
        if len(self._older) >= self._most:
            self._older = [joined(self._older[at : at + 2]) for at in range(0, self._most, 2)]
            self._each *= 2
