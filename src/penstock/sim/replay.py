"""A live run's events, handed to the same machine once more: what it decided, or what another policy would.

Nothing is simulated: hosts, slots and records are as they were recorded, whatever is decided now.
"""

from __future__ import annotations

import gzip
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
from penstock.state.store.store import Store


@dataclass(frozen=True)
class Recorded:
    """One start of a query, as its checkpoint has it."""

    opening: Opening
    events: tuple[Event, ...]
    journal: tuple[Entry, ...]
    """What was told at the time, as far as events are recorded."""


def recorded(store: Store) -> Recorded:
    """The newest start of a query on a checkpoint, of which events were recorded."""
    starts = dict[str, list[str]]()
    for name in sorted(found.name for found in store.files.below("events")):
        starts.setdefault(name.split("/")[1], []).append(name)
    if not starts:
        raise SettingError(
            f"{store.uri} has no recorded events",
            hint="they are kept for flows with .sla(...).elastic(): run one on this checkpoint",
        )
    files = starts[max(starts)]
    texts = (gzip.decompress(store.files.read(name) or b"") for name in files)
    opening, told = read(line for text in texts for line in text.splitlines())
    events = tuple(told)
    until_ms = max((event.now_ms for event in events), default=opening.started_ms)
    entries = store.journal_entries(Entry, files=10_000)
    known = tuple(one for one in entries if opening.started_ms <= one.time_ms <= until_ms)
    return Recorded(opening, events, known)


def replayed(run: Recorded, policy: str | None = None) -> tuple[Entry, ...]:
    """The journal that the machine tells of the events; with another policy, if one is named."""
    elastic = run.opening.again(policy)
    machine = machine_of(run.opening, elastic)
    told = list[Entry]()
    for event in run.events:
        for instruction in machine.handle(_of(event, policy)):
            if isinstance(instruction, Tell):
                told.append(_as_written(instruction.entry))
    return tuple(told)


def _of(event: Event, policy: str | None) -> Event:
    """The event; a policy that is tried stays, whatever the user changed."""
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
    """As it comes back from a file."""
    return codec.decode(codec.encode(entry), Entry)


@dataclass(frozen=True)
class Difference:
    """The first entry in which two journals differ; None where one has ended."""

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
class Wanted:
    """The treatments that a policy wanted at one moment."""

    time_ms: float
    step: str
    treatments: tuple[str, ...]
    kinds: tuple[str, ...]


def wanted(journal: Iterable[Entry]) -> list[Wanted]:
    """All that was wanted, in order."""
    return [
        Wanted(
            entry.time_ms,
            entry.step,
            tuple(
                f"{one['kind'].replace('_', ' ')}: slots {one['slots']} from {one['source']} to "
                f"{one['target']}"
                for one in entry.facts["treatments"]
            ),
            tuple(one["kind"] for one in entry.facts["treatments"]),
        )
        for entry in journal
        if entry.event == "decided" and entry.facts["treatments"]
    ]
