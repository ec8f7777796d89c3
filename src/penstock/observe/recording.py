"""The recording of one start of a flow: facts about it, a moment for each second, and its journal.

A running query has one in memory (`recorder.Recorder`). A checkpoint keeps those of the newest starts
(`KeptRecording`), whether the query still runs or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.control.money import HostPrice
from penstock.errors import CheckpointError, PenstockError, SettingError
from penstock.observe.moment import Moment
from penstock.state.store.start_files import files_by_start, start_lines
from penstock.state.store.store import Store


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
        """Whether more moments will come."""

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

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        return [moment for moment in self.kept if moment.time_ms > since_ms]

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        return [entry for entry in self.journal if entry.time_ms > since_ms]


def starts(store: Store) -> list[float]:
    """Starts of flows that a checkpoint has recordings of, in milliseconds since 1970, oldest first."""
    return sorted(float(start) for start in files_by_start(store, "moments"))


def kept_recording(store: Store, started_ms: float | None = None) -> KeptRecording:
    """Read a recording from a checkpoint: that of a start, or of the newest one."""
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
    facts, moments = _read(start_lines(store, by_time[chosen]), store.uri)
    ended_ms = min((start for start in by_time if start > chosen), default=float("inf"))
    entries = store.journal_entries(Entry, files=10_000)
    journal = [entry for entry in entries if facts.started_ms <= entry.time_ms < ended_ms]
    return KeptRecording(facts, moments, journal)


def _read(lines: Iterable[bytes], uri: str) -> tuple[FlowFacts, list[Moment]]:
    """Facts and moments of a recording. Ends where its files are damaged, as after a full disk."""
    rest = iter(lines)
    try:
        facts = codec.from_plain(codec.decode(next(rest, b"{}"), dict)["facts"], FlowFacts)
    except (KeyError, PenstockError, OSError) as wrong:
        raise CheckpointError(
            f"the recording in {uri} has no readable beginning",
            hint="look at another start, or run the flow again",
        ) from wrong
    moments: list[Moment] = []
    with suppress(PenstockError, OSError, EOFError):
        moments.extend(codec.decode(line, Moment) for line in rest)
    return facts, moments
