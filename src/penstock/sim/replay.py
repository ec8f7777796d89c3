"""Replay of a run's recorded events: repeats its decisions, or shows those of another policy.

Nothing is simulated: hosts, slots and records are those that were recorded, whatever is decided now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from penstock import codec
from penstock.control.events import Event, Steered
from penstock.control.instructions import Tell
from penstock.control.journal.entry import Entry
from penstock.control.policies.parse import parse
from penstock.control.record import Opening, own_policy, read
from penstock.errors import SettingError
from penstock.offload.policy.flow import machine_of
from penstock.state.store.start_files import files_by_start, start_lines
from penstock.state.store.store import Store


@dataclass(frozen=True)
class Recorded:
    """One start of a query, as recorded in its checkpoint."""

    opening: Opening
    events: tuple[Event, ...]
    journal: tuple[Entry, ...]
    """Journal of the run, up to the last recorded event."""


def recorded(store: Store) -> Recorded:
    """The newest start of a query in a checkpoint that has recorded events."""
    starts = files_by_start(store, "events")
    if not starts:
        raise SettingError(
            f"{store.uri} has no recorded events",
            hint="events are recorded for flows with .sla(...).elastic(): run one on this checkpoint",
        )
    opening, rest = read(start_lines(store, starts[max(starts)]))
    events = tuple(rest)
    until_ms = max((event.now_ms for event in events), default=opening.started_ms)
    entries = store.journal_entries(Entry, files=10_000)
    journal = tuple(entry for entry in entries if opening.started_ms <= entry.time_ms <= until_ms)
    return Recorded(opening, events, journal)


def replayed(run: Recorded, policy: str | None = None) -> tuple[Entry, ...]:
    """The journal of a machine that gets the recorded events, with another policy if `policy` is set."""
    elastic = run.opening.again(policy)
    machine = machine_of(run.opening, elastic)
    journal = list[Entry]()
    for event in run.events:
        for instruction in machine.handle(_of(event, policy)):
            if isinstance(instruction, Tell):
                journal.append(_as_written(instruction.entry))
    return tuple(journal)


def _of(event: Event, policy: str | None) -> Event:
    """The event, without the user's change of policy if `policy` is set."""
    if not isinstance(event, Steered) or event.steering.policy is None:
        return event
    if policy is not None:
        return replace(event, steering=replace(event.steering, policy=None))
    try:
        parse(event.steering.policy)
    except SettingError as unknown:
        raise own_policy(str(event.steering.policy)) from unknown
    return event


def _as_written(entry: Entry) -> Entry:
    """The entry as it would be read back from a file."""
    return codec.decode(codec.encode(entry), Entry)


@dataclass(frozen=True)
class Difference:
    """The first entry in which two journals differ. An entry is None if its journal has ended."""

    number: int
    recorded: Entry | None
    replayed: Entry | None


def difference(one: Sequence[Entry], other: Sequence[Entry]) -> Difference | None:
    """The first difference of two journals; None if they are equal.

    >>> a = Entry(1.0, 1, "sum", "done", "")
    >>> difference([a], [a]), difference([a], []).number
    (None, 0)
    """
    for number, (left, right) in enumerate(zip_longest(one, other)):
        if left != right:
            return Difference(number, left, right)
    return None


@dataclass(frozen=True)
class WantedTreatments:
    """The treatments of one decision."""

    time_ms: float
    step: str
    treatments: tuple[str, ...]
    kinds: tuple[str, ...]


def wanted(journal: Iterable[Entry]) -> list[WantedTreatments]:
    """All decisions with treatments in a journal, in order."""
    return [
        WantedTreatments(
            entry.time_ms,
            entry.step,
            tuple(
                f"{facts['kind'].replace('_', ' ')}: slots {facts['slots']} from {facts['source']} "
                f"to {facts['target']}"
                for facts in entry.facts["treatments"]
            ),
            tuple(facts["kind"] for facts in entry.facts["treatments"]),
        )
        for entry in journal
        if entry.event == "decided" and entry.facts["treatments"]
    ]
