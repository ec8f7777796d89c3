"""Hosts in live runs that can be copied, so that a test can try all orders of deliveries.

Their table is a plain dict. A key's state is the tuple of the rows that were applied to it, in order. So rows
that are lost, doubled or out of order show. All other parts are the real ones: `Rounds`, `Holdings`,
`Residence`, `Copies`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Holdings
from penstock.host.residence import FrozenCopy, NeedKeys
from penstock.host.rounds import Rounds
from penstock.operators.operator import ROWS, Answer, EpochTime, Operator
from penstock.plan.assignment import Assignment, Incoming
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys, int_keys, slots_of
from penstock.state.keys.slot_map import SlotMap
from penstock.wire.live import CheckpointMessage, Chunk, Frame, Handing, Message, Reroute

SLOTS = 2
SCHEMA = pa.schema([("k", pa.int64()), ("row", pa.int64())])
CODEC = KeyCodec(pa.schema([("k", pa.int64())]))
State = dict[int, tuple[int, ...]]


def slot(key: int) -> int:
    return int(slots_of(int_keys(np.array([key])).hashes, SLOTS)[0])


KEYS = [next(k for k in range(100) if slot(k) == s) for s in range(SLOTS)]
"""One key of each slot."""


@dataclass
class Rows:
    """Entries that are being moved."""

    state: State

    @property
    def num_rows(self) -> int:
        return len(self.state)

    def get_total_buffer_size(self) -> int:
        return 0


class PlainTable:
    """A table with the methods that `Holdings` uses. A key is its own entry."""

    slots, nbytes, renumberings = SLOTS, 0, 0
    slot_map = SlotMap(SLOTS)
    codec = CODEC

    def __init__(self) -> None:
        self.now: State = {}
        """Rows of each known key. A key that is known to be absent has no rows."""
        self.changed: set[int] = set()
        self.kept: list[tuple[State, set[int]]] = [({}, set())]

    def __len__(self) -> int:
        return len(self.now)

    def known(self, keys: Keys) -> Array:
        return np.array([int(k) in self.now for k in ints(keys)], np.bool_)

    def find(self, keys: Keys) -> Array:
        return np.array([k if self.now.get(int(k)) else -1 for k in ints(keys)], np.int64)

    def install(self, keys: Keys, rows: Rows) -> None:
        for key in ints(keys):
            self.now.setdefault(int(key), rows.state.get(int(key), ()))

    def export(self, entries: Array) -> Rows:
        return Rows({int(k): self.now[int(k)] for k in entries})

    def delta(self, slots: Array | None = None) -> Rows:
        wanted = range(SLOTS) if slots is None else slots.tolist()
        return Rows({k: self.now[k] for k in self.changed if slot(k) in wanted})

    def step(self) -> None:
        pass

    def cut(self) -> None:
        self.kept.append((dict(self.now), set()))
        self.changed = set()

    def settle(self, cuts: int) -> None:
        del self.kept[:cuts]

    def rollback(self) -> None:
        self.now, self.changed = dict(self.kept[0][0]), set()
        del self.kept[1:]

    def drop(self, slots: Array) -> None:
        gone = [k for k in self.now if slot(k) in slots.tolist()]
        self.renumberings += bool(gone)
        for state in (self.now, *(kept for kept, _ in self.kept)):
            for key in gone:
                state.pop(key, None)

    def give_away(self, slots: Array) -> None:
        pass

    def count_in(self, slots: Array) -> int:
        return len(self.entries_in(slots))

    def entries_in(self, slots: Array) -> Array:
        return np.array([k for k, v in self.now.items() if slot(k) in slots.tolist() and v])


def ints(keys: Keys) -> Array:
    assert keys.ints is not None
    return keys.ints


class PlainOperator:
    """An operator that appends each row to its key's state."""

    output, due_columns, ordered = SCHEMA, (), False

    def __init__(self) -> None:
        self.table = PlainTable()

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        return [CODEC.encode(batch) for batch in batches]

    def due(self, time: EpochTime) -> dict[str, int]:
        return {}

    def begin(self, time: EpochTime) -> None:
        pass

    def apply(self, kind: str, batches: list[pa.RecordBatch], places: object = None) -> Answer:
        for batch in batches:
            for key, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self.table.now[key] = (*self.table.now.get(key, ()), row)
                self.table.changed.add(key)
        return Answer()

    def close(self) -> Answer:
        return Answer()

    def rollback(self) -> None:
        self.table.rollback()


# -- scripts of couriers


@dataclass(frozen=True)
class Row:
    """A courier sends a row of a slot's key."""

    slot: int


@dataclass(frozen=True)
class Move:
    """A slot moves to another host."""

    slot: int
    source: int
    target: int
    whole: bool = False
    after: int = 0
    """Version that must be durable before the move: the one in which the slot moved last."""


@dataclass(frozen=True)
class Cut:
    """A checkpoint."""


Deed = Row | Move | Cut


@dataclass
class World:
    """Hosts, the frames on their way to them, and the store."""

    hosts: list[Rounds]
    streams: dict[tuple[int, int], deque[tuple[Frame, pa.RecordBatch | None]]]
    """(courier, host) -> frames that were not delivered yet."""
    before: dict[int, dict[int, list[int]]]
    """Epoch -> key -> rows of that epoch and of all earlier ones."""
    owners: dict[int, list[int]]
    """Epoch -> owner of each slot at its end."""
    store: list[State]
    """State of each version, from version 0 on."""
    asked: list[list[tuple[NeedKeys, list[Rows | None]]]] = field(default_factory=list)
    """For each host, its requests, with the answers that have left their source."""
    gathered: dict[int, dict[int, list[Rows]]] = field(default_factory=dict)
    """Epoch -> host -> deltas."""
    slow: bool = False
    """Whether receiving a frame and working on it are separate events, so that frames wait in queues."""
    stirred: set[int] = field(default_factory=set)
    """Slow hosts that have work to do."""
    _unchanging: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self._unchanging:
            return
        frames = [item for stream in self.streams.values() for item in stream]
        messages = [f.message for f, _ in frames if f.message is not None]
        self._unchanging = (
            *(part for item in frames for part in (item, *item) if part is not None),
            *messages,
            *(m.checkpoint for m in messages if m.checkpoint is not None),
        )

    def holdings(self, host: int) -> Holdings:
        return self.hosts[host]._holdings

    def table(self, host: int) -> PlainTable:
        return cast(PlainTable, self.holdings(host).operator.table)

    def copied(self, *hosts: int) -> World:
        """Return a copy in which these hosts can go on in another way."""
        memo = {id(value): value for value in self._unchanging}
        for host in hosts:
            memo |= {id(held): held for held in self.hosts[host]._held.chunks}
        same, streams = list(self.hosts), {w: deque(f) for w, f in self.streams.items()}
        for host in hosts:
            same[host] = copy.deepcopy(same[host], memo)
        asked = [[(need, list(answers)) for need, answers in of] for of in self.asked]
        gathered = {epoch: dict(by) for epoch, by in self.gathered.items()}
        return World(
            same,
            streams,
            self.before,
            self.owners,
            list(self.store),
            asked,
            gathered,
            self.slow,
            set(self.stirred),
            self._unchanging,
        )

    # -- events

    def events(self) -> Iterator[tuple[Any, ...]]:
        for where, frames in self.streams.items():
            reroute = frames[0][0].message.reroute if frames and frames[0][0].message else None
            # In these tests `trickle_mb_s` holds the version that must be durable first.
            if frames and (reroute is None or reroute.trickle_mb_s < len(self.store)):
                yield ("deliver", *where)
        for host in sorted(self.stirred):
            yield "work", host
        for host, asked in enumerate(self.asked):
            for place, (need, answers) in enumerate(asked):
                if all(answer is not None for answer in answers):
                    yield "install", host, place
                for part, (source, keys) in enumerate(need.parts):
                    if answers[part] is None and self.answer(host, source, keys) is not None:
                        yield "serve", host, place, part
            if self.holdings(host).wanted() is not None and self.whole_slot(host) is not None:
                yield "trickle", host
        if len(self.gathered.get(len(self.store), {})) == len(self.hosts):
            yield ("manifest",)

    def happen(self, event: tuple[Any, ...]) -> None:
        kind, *where = event
        if kind == "deliver":
            courier, host = where
            self.hosts[host].receive(courier, *self.streams[courier, host].popleft())
        elif kind == "serve":
            host, place, part = where
            need, answers = self.asked[host][place]
            answers[part] = self.answer(host, *need.parts[part])
            return
        elif kind == "install":
            host, place = where
            need, answers = self.asked[host].pop(place)
            for (_, keys), rows in zip(need.parts, answers, strict=True):
                self.holdings(host).install(need, keys, cast(pa.Table, rows))
            self.hosts[host].fetched(need)
        elif kind == "trickle":
            (host,) = where
            wanted, keys, rows = cast(tuple[Any, Keys, Rows], self.whole_slot(host))
            self.holdings(host).install(wanted, keys, cast(pa.Table, rows))
            self.holdings(host).complete_slot(wanted)
            self.hosts[host].state_came()
        elif kind == "manifest":
            self.commit()
            return
        else:
            (host,) = where
        if self.slow and kind != "work":
            self.stirred.add(host)
            return
        outcome = self.hosts[host].work()
        if not outcome.more:
            self.stirred.discard(host)
        self.asked[host] += [
            (need, [None] * len(need.parts)) for need in outcome.needs if isinstance(need, NeedKeys)
        ]
        for gathered in outcome.gathered:
            deltas = cast(list[Rows], list(gathered.deltas))
            self.gathered.setdefault(gathered.epoch, {})[host] = deltas

    def answer(self, asks: int, source: FrozenCopy | None, keys: Keys) -> Rows | None:
        """Return the rows of keys from a source or the store; None if it cannot answer yet."""
        wanted, slots = [int(k) for k in ints(keys)], slots_of(keys.hashes, SLOTS)
        needed = int(self.holdings(asks).residence.came[slots].max())
        rows: State = {}
        if source is not None:
            other = self.holdings(int(source.location))
            if other.residence.holds(slots, source.version, source.run).all():
                copied, unknown = other.copies.of_keys(keys, source.version, source.run)
                rows, wanted = (
                    dict(cast(Rows, copied).state),
                    [wanted[at] for at in unknown.tolist()],
                )
                lacking = other.copies.lacking(slots)
                needed = needed if lacking is None else lacking
            elif self.hosts[int(source.location)].acted < source.version:
                return None
        if not wanted:
            return Rows(rows)
        return Rows(rows | self.stored(wanted)) if needed < len(self.store) else None

    def stored(self, keys: list[int]) -> State:
        return {k: self.store[-1][k] for k in keys if k in self.store[-1]}

    def whole_slot(self, host: int) -> tuple[Any, Keys, Rows] | None:
        wanted = self.holdings(host).wanted()
        assert wanted is not None
        keys = int_keys(np.array([KEYS[wanted.slot]]))
        rows = self.answer(host, wanted.source, keys)
        return None if rows is None else (wanted, keys, rows)

    def commit(self) -> None:
        """Write the manifest of the next version. Deltas of slots that left come first."""
        state, sealed = dict(self.store[-1]), self.gathered[len(self.store)].values()
        for deltas in [*(d[:-1] for d in sealed), *(d[-1:] for d in sealed)]:
            for rows in deltas:
                state |= rows.state
        for key, expected in self.before[len(self.store)].items():
            self.check(state.get(key, ()), expected)
        self.store.append(state)

    # -- invariants

    def check(self, applied: tuple[int, ...], rows: list[int]) -> None:
        """Check that exactly these rows of a key were applied, each once and each courier's in order."""
        assert sorted(applied) == sorted(rows), f"{applied}, not {rows}"
        for courier in {row // 100 for row in rows}:
            mine = [row for row in applied if row // 100 == courier]
            assert mine == sorted(mine), f"rows {applied} are not in order"

    def at_rest(self) -> None:
        """Check the state when nothing more can happen."""
        last = max(self.before)
        assert not any(self.streams.values()), "frames were not delivered"
        assert not any(host._held.chunks for host in self.hosts), "rows are held forever"
        assert not any(c.frames for host in self.hosts for c in host._couriers), "frames are queued"
        for host, rounds in enumerate(self.hosts):
            owned = np.flatnonzero(rounds._holdings.residence.owned).tolist()
            assert owned == [s for s in range(SLOTS) if self.owners[last][s] == host]
        for s, key in enumerate(KEYS):
            owner = self.owners[last][s]
            if key in self.table(owner).now or not self.holdings(owner).residence.partial[s]:
                self.check(self.table(owner).now.get(key, ()), self.before[last][key])

    def goes_back(self) -> None:
        """Roll all hosts back to the newest version, and check that they are as they were."""
        version = len(self.store) - 1
        for host in range(len(self.hosts)):
            holdings = self.holdings(host)
            holdings.return_to(version)
            owned = np.flatnonzero(holdings.residence.owned).tolist()
            assert owned == [s for s in range(SLOTS) if self.owners[version][s] == host], "owners"
            for key, rows in self.table(host).now.items():
                if slot(key) in owned:
                    assert rows == self.store[version].get(key, ()), "rows came back"
            for s in owned:
                if KEYS[s] not in self.table(host).now and not holdings.residence.partial[s]:
                    assert KEYS[s] not in self.store[version], f"slot {s} is not complete"

    def signature(self) -> tuple[Any, ...]:
        return (
            tuple(map(len, self.streams.values())),
            tuple(self._of(host) for host in range(len(self.hosts))),
            len(self.store),
            tuple((e, tuple(sorted(by))) for e, by in sorted(self.gathered.items())),
        )

    def _of(self, host: int) -> tuple[Any, ...]:
        rounds, residence = self.hosts[host], self.holdings(host).residence
        asked = [
            tuple(tuple(ints(k).tolist()) for _, k in need.parts)
            + tuple(None if a is None else tuple(sorted(a.state.items())) for a in answers)
            for need, answers in self.asked[host]
        ]
        return (
            tuple(sorted(self.table(host).now.items())),
            tuple(sorted(self.table(host).changed)),
            tuple((len(c.frames), c.rows, c.barrier, c.newest) for c in rounds._couriers),
            (rounds._pulled, rounds._left, host in self.stirred),
            tuple((h.serial, h.courier, h.number, h.keys.hashes.tobytes()) for h in rounds._held.chunks),
            tuple((n, tuple(sorted(seen))) for n, (_, seen) in rounds._messages.items()),
            tuple(getattr(residence, n).tobytes() for n in ("owned", "partial", "frozen", "came", "whole")),
            tuple(asked), rounds.epoch, len(residence._kept), self.holdings(host).version,
        )  # fmt: skip


def world(
    scripts: list[list[Deed]],
    hosts: int = 2,
    owners: tuple[int, ...] = (0, 1),
    stored: bool = False,
    slow: bool = False,
) -> World:
    """Return a run of couriers with these scripts.

    With `stored`, each key already has a row in the store, which hosts have not fetched. With `slow` hosts a
    round should have one row.
    """
    store: State = dict.fromkeys(KEYS, (-1,)) if stored else {}
    rounds = []
    for host in range(hosts):
        holdings = Holdings(cast(Operator, PlainOperator()))
        mine = tuple(s for s in range(SLOTS) if owners[s] == host)
        holdings.assign(Assignment(0, mine, (Incoming(mine, None),)))
        if not stored:
            holdings.residence.partial[:] = False
            holdings.residence.settle()
        rounds.append(Rounds(holdings, str(host), 0, len(scripts), lambda: 0, lambda: 0.0))
    first = 0
    streams: dict[tuple[int, int], deque[tuple[Frame, pa.RecordBatch | None]]] = {
        (c, h): deque() for c in range(len(scripts)) for h in range(hosts)
    }
    began = {key: list(store.get(key, ())) for key in KEYS}
    before, owned = {first: began}, {first: list(owners)}
    for courier, script in enumerate(scripts):
        table, epoch, number, row = list(owners), first + 1, 0, 0
        for deed in script:
            if isinstance(deed, Row):
                row += 1
                key, row_id = KEYS[deed.slot], courier * 100 + row
                batch = pa.record_batch({"k": [key], "row": [row_id]}, schema=SCHEMA)
                chunk = Frame(chunk=Chunk(row, ROWS))
                streams[courier, table[deed.slot]].append((chunk, batch))
                rows = before.setdefault(epoch, {k: [] for k in KEYS})
                rows[key].append(row_id)
                continue
            if isinstance(deed, Move):
                handing = Handing(
                    (deed.slot,), str(deed.source), str(deed.source), str(deed.target), ""
                )
                message = Message(
                    reroute=Reroute(number, "step", (handing,), deed.whole, deed.after)
                )
                table[deed.slot] = deed.target
            else:
                message = Message(checkpoint=CheckpointMessage(number, epoch, epoch - 2))
            for host in range(hosts):
                streams[courier, host].append((Frame(message=message), None))
            number += 1
            owned[epoch] = list(table)
            if isinstance(deed, Cut):
                before.setdefault(epoch, {k: [] for k in KEYS})
                epoch += 1
        before.setdefault(epoch, {k: [] for k in KEYS})
        owned[epoch] = list(table)
    for epoch in sorted(before)[1:]:
        for key in KEYS:
            before[epoch][key] = before[epoch - 1][key] + before[epoch][key]
    return World(rounds, streams, before, owned, [store], [[] for _ in rounds], slow=slow)


def explore(make: Callable[[], World], most: int = 200_000, back_every: int = 5) -> int:
    """Try all events in all orders, and return the number of states."""
    start = make()
    seen = {start.signature()}
    todo: list[tuple[World, tuple[Any, ...]]] = [(start, ())]
    while todo:
        here, path = todo.pop()
        events = list(here.events())
        try:
            if not events:
                here.at_rest()
            if len(seen) % back_every == 0 and here.store:
                here.copied(*range(len(here.hosts))).goes_back()
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}\n  after {path}") from wrong
        for event in events:
            touched = {"deliver": event[2:3], "manifest": (), "serve": ()}.get(event[0], event[1:2])
            after = here.copied(*touched)
            try:
                after.happen(event)
            except AssertionError as wrong:
                raise AssertionError(f"{wrong}\n  after {(*path, event)}") from wrong
            signature = after.signature()
            if signature not in seen:
                seen.add(signature)
                todo.append((after, (*path, event)))
        assert len(seen) <= most, "too many states"
    return len(seen)
