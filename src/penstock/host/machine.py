"""A host in micro-batches, as a pure state machine: closed channels and the driver's orders in, answers out.

It uses no sockets, threads or files: `host.server` is the shell around it. A host moves through

    version v ──open(v+1, run)──► open ──last channel closes──► complete ──seal──► sealed
        ▲                          │                              │                  │
        └──────── rollback ◄───────┴──────────────────────────────┴──────────────────┤
                                                     open(v+2, ·) makes v+1 final ◄──┘

A sealed epoch can still be rolled back, because another host may fail while it seals. The opening of
the next epoch, or an assignment of slots, makes it final. A channel is applied once. If a retried task
or a second job of the sink closes it again, it gets the answer that was kept, and nothing changes.

Slots come and go between epochs (`assign`). While a slot is partial (see `residence`), a channel may
need entries that are not on this host. `needs` returns them, the shell fetches them, `install` adds them
to the table, and then the channel can be closed. Meanwhile `apply_here` applies the rows of all other keys.
The channel has *begun* then: its rest is kept, and any attempt of its task that closes it applies that rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from penstock.errors import ChangedInputError, ProtocolError, StaleRunError
from penstock.host.held_rows import taken
from penstock.host.holdings import Holdings
from penstock.host.pieces import Piece, Piecework, cut
from penstock.host.residence import Need, NeedSlots
from penstock.host.vitals import HostVitals
from penstock.operators.operator import ROWS, Answer, EpochTime, Operator
from penstock.operators.places import Places, by_arrival
from penstock.plan.assignment import Assignment
from penstock.wire.messages import ChannelHeader

_NO_ATTEMPT = -1
"""Attempt of a channel that was closed for all attempts of its task."""


@dataclass(frozen=True)
class _Kept:
    """A closed channel, with the answer for a task that closes it again."""

    attempt: int
    """Number of the task attempt that closed it."""
    rows: int
    """Number of its input rows. A task that closes it again must have as many."""
    answer: Answer


@dataclass
class _Begun:
    """A channel whose rows are applied as far as their state is here."""

    header: ChannelHeader
    """Header of the attempt that began it."""
    kind: str
    rest: list[pa.RecordBatch]
    """Records that wait for state. All records of a key are applied together, in order."""
    ready: deque[Piece] = field(default_factory=deque)
    """Records whose state is here, and which were not applied yet."""
    answers: list[Answer] = field(default_factory=list)
    rows: int = 0
    """Number of records that were applied."""
    busy_s: float = 0.0

    @property
    def left(self) -> list[pa.RecordBatch]:
        """All records that were not applied yet."""
        return [*(batch for piece in self.ready for batch in piece.batches), *self.rest]


@dataclass
class _Run:
    """Progress of one run of one epoch."""

    epoch: int
    run: int
    partitions: int
    time: EpochTime
    fired: Answer
    kept: dict[int, _Kept] = field(default_factory=dict)
    begun: dict[int, _Begun] = field(default_factory=dict)
    """Channels that have begun and are not closed, under each number that closes with them."""
    rows: int = 0
    busy_s: float = 0.0
    held: list[tuple[list[pa.RecordBatch], Places]] = field(default_factory=list)
    """Input of closed channels that is applied with the last one, by arrival."""
    closed_ms: dict[int, float] = field(default_factory=dict)
    """Partition -> time at which its channel was applied, in milliseconds since 1970."""

    @property
    def complete(self) -> bool:
        return len(self.kept) == self.partitions


class HostMachine(Holdings):
    """State and protocol of one host in micro-batches. Calls must not overlap: the shell holds a lock."""

    def __init__(
        self,
        operator: Operator,
        clock: Callable[[], float] = time.perf_counter,
        memory_limit: int | None = None,
        wall_s: Callable[[], float] = time.time,
        arrival: str | None = None,
    ) -> None:
        """With `arrival`, a column, the rows of an epoch are applied together, by their arrival times, when
        the last channel closes. Its answer has all output then."""
        super().__init__(operator, memory_limit)
        self._wall_s, self._arrival = wall_s, arrival
        self._run: _Run | None = None
        self._sealed = False
        self._given_up = (-1, -1)
        self._clock = clock
        self._spent_s = 0.0

    def assign(self, order: Assignment) -> None:
        """Own exactly these slots from now on, starting from a version that is final."""
        if self._run is not None and self._sealed and self._run.epoch == order.version:
            self._finish()
        if self._run is not None:
            raise ProtocolError(f"slots cannot be reassigned at version {order.version}: {self}")
        super().assign(order)

    def needs(self, header: ChannelHeader, kind: str, batches: list[pa.RecordBatch]) -> Need | None:
        """Return the state to fetch before this channel can be closed; None if there is none."""
        self._admit(header)
        residence = self.residence
        if not residence.any_partial:
            return None
        if self._run is None:
            due = self.need_due(self.operator.due(header.time))
            if due is not None:
                return due
            self._open(header)
        elif header.partition in self._run.kept:
            return None
        kind, batches = self.unapplied(header, kind, batches)
        missing = self.missing(self.operator.keys(kind, batches))
        if missing is None:
            return None
        slots = self.operator.table.slot_map.of(missing.hashes)
        whole = np.unique(slots[residence.whole[slots]])
        return NeedSlots(tuple(whole.tolist())) if len(whole) else self.need_keys(missing)

    def apply_here(
        self,
        header: ChannelHeader,
        kind: str,
        batches: list[pa.RecordBatch],
        pieces: Callable[[int], int] = lambda rows: 1,
    ) -> int:
        """Apply a piece of those records of a channel whose state is here; return its number of records.

        Called after `needs` has returned a need, while the rest is fetched. `pieces` tells into how many
        pieces to cut a number of records. `close_channel` applies the rest and returns the answer of all. An
        ordered step waits for all: its records keep their order.
        """
        run = self._run
        if run is None or not self.is_open(header.epoch, header.run):
            return 0
        if self.operator.ordered or header.partition in run.kept:
            return 0
        begun = run.begun.get(header.partition) or _Begun(header, kind, batches)
        began = self._clock()
        if not begun.ready:
            self._sort_out(begun, pieces)
        if not begun.ready:
            return 0
        piece = begun.ready[0]
        begun.answers.append(self.operator.apply(begun.kind, piece.batches))
        begun.ready.popleft()
        begun.rows += piece.rows
        begun.busy_s += self._clock() - began
        run.begun |= dict.fromkeys(begun.header.closes, begun)
        return piece.rows

    def _sort_out(self, begun: _Begun, pieces: Callable[[int], int]) -> None:
        """Find the records whose state is here. They stay ready: state leaves again only with the run, or
        when another channel is undone to a mark that was set after this."""
        keys = self.operator.keys(begun.kind, begun.rest)
        waits = [self.lacks(of) for of in keys]
        parts = list(zip(begun.rest, waits, strict=True))
        here = [taken(batch, np.flatnonzero(~of)) for batch, of in parts if not of.all()]
        rows = sum(batch.num_rows for batch in here)
        if not rows:
            return
        count = pieces(rows)
        made = cut(self.operator, begun.kind, here, count) if count > 1 else [Piece(here)]
        begun.ready.extend(made)
        begun.rest = [taken(batch, np.flatnonzero(of)) for batch, of in parts if of.any()]

    def unapplied(
        self, header: ChannelHeader, kind: str, batches: list[pa.RecordBatch]
    ) -> tuple[str, list[pa.RecordBatch]]:
        """Return the kind and the records with which to close a channel: if it has begun, those kept here."""
        begun = None if self._run is None else self._run.begun.get(header.partition)
        return (kind, batches) if begun is None else (begun.kind, begun.left)

    def divided(self, header: ChannelHeader, pieces: Iterable[Piece]) -> None:
        """Note that all unapplied records of a channel are in these pieces. If it has begun, its rest is kept
        as them, and so is in memory only once. Their state must be here."""
        if self._run is not None and (begun := self._run.begun.get(header.partition)) is not None:
            begun.ready, begun.rest = deque(pieces), []

    def spent(self, seconds: float) -> None:
        """Add seconds spent on channels outside of `close_channel`: reading, answering."""
        self._spent_s += seconds

    def with_spent(self, vitals: HostVitals) -> HostVitals:
        """Return the vitals of a sealed epoch with the time noted by `spent` added, and reset that time."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return replace(vitals, useful_ms=vitals.useful_ms + spent_s * 1000)

    # -- channels and epochs

    def ahead_of(self, header: ChannelHeader) -> int | None:
        """Return the first channel of a lower task that is not applied yet; None if there is none, or if this
        channel itself was applied. In an ordered flow, channels are applied in the order of their tasks."""
        self._admit(header)
        kept = {} if self._run is None else self._run.kept
        if header.partition in kept:
            return None
        lower = range(header.partition - header.task, header.partition)
        return next((channel for channel in lower if channel not in kept), None)

    def close_channel(
        self,
        header: ChannelHeader,
        kind: str,
        batches: list[pa.RecordBatch],
        places: Places | None = None,
    ) -> Answer:
        """Apply a channel whose input is complete, and return its answer. `kind` is that of its records."""
        kept = self.begin_channel(header)
        if kept is not None:
            return kept
        assert self._run is not None
        if header.partition in self._run.begun:
            return self._finish_channel(header, self._run.begun[header.partition])
        began = self._clock()
        rows = sum(batch.num_rows for batch in batches)
        if self._arrival is not None and kind == ROWS:
            batches, places = self._by_arrival(header, batches, places)
        answer = self.operator.apply(kind, batches, places)
        answer = Answer.joined([self.fired(header), answer])
        if self.ends_epoch(header):
            answer = Answer.joined([answer, self.close_epoch()])
        self.keep(header, answer, rows, self._clock() - began)
        return answer

    def _finish_channel(self, header: ChannelHeader, begun: _Begun) -> Answer:
        """Apply the rest of a channel that has begun. If that fails, the next attempt tries again."""
        assert self._run is not None
        began, left = self._clock(), begun.left
        rest = self.operator.apply(begun.kind, left)
        rows = sum(batch.num_rows for batch in left)
        return self._close_begun(header, begun, [rest], rows, self._clock() - began)

    def _close_begun(
        self,
        header: ChannelHeader,
        begun: _Begun,
        rest: list[Answer],
        rows: int,
        busy_s: float,
    ) -> Answer:
        """Close a channel that has begun, with the answers of its rest."""
        assert self._run is not None
        first, began = begun.header, self._clock()
        answer = Answer.joined([self.fired(first), *begun.answers, *rest])
        if self.ends_epoch(first):
            answer = Answer.joined([answer, self.close_epoch()])
        # The second channel of a task closes the first, which is yet to come from the same attempt.
        attempt = header.attempt if header.partition == first.partition else _NO_ATTEMPT
        busy_s += begun.busy_s + self._clock() - began
        self.keep(replace(first, attempt=attempt), answer, begun.rows + rows, busy_s)
        for channel in first.closes:
            self._run.begun.pop(channel, None)
        return self._run.kept[header.partition].answer

    def _by_arrival(
        self, header: ChannelHeader, batches: list[pa.RecordBatch], places: Places | None
    ) -> tuple[list[pa.RecordBatch], Places | None]:
        """Hold the input of a channel; return that of all channels with the last one, by arrival."""
        assert self._run is not None and self._arrival is not None
        self._run.held.append((batches, places or Places.none()))
        if not self.ends_epoch(header):
            return [], Places.none()
        held, self._run.held = self._run.held, []
        return by_arrival(held, self._arrival)

    def close_pieces(self, work: Piecework) -> Answer:
        """Close a channel whose pieces are all applied, and return its answer."""
        assert self._run is not None
        header = work.header
        begun = self._run.begun.get(header.partition) or _Begun(header, work.kind, [])
        answer = self._close_begun(header, begun, work.answers, work.rows, work.busy_s)
        self.helped(work.helped_rows)
        return answer

    def is_open(self, epoch: int, run: int) -> bool:
        """Tell whether this run is open."""
        current = self._run
        return current is not None and (current.epoch, current.run) == (epoch, run)

    def is_past(self, epoch: int, run: int) -> bool:
        """Tell whether no channel of this run can be taken any more: it was given up, or a later one came."""
        current = self._run
        later = current is not None and (current.epoch, current.run) > (epoch, run)
        return later or (epoch, run) <= self._given_up

    def is_kept(self, header: ChannelHeader) -> bool:
        """Tell whether a channel of the open run was closed before."""
        return self._run is not None and header.partition in self._run.kept

    def begin_channel(self, header: ChannelHeader) -> Answer | None:
        """Admit a channel, and open its run if needed. Return the kept answer if it was closed before."""
        self._admit(header)
        run = self._run if self._run is not None else self._open(header)
        kept = run.kept.get(header.partition)
        if kept is not None:
            if kept.attempt == header.attempt:
                raise ProtocolError(
                    f"one task delivered partition {header.partition} of epoch {header.epoch} twice",
                    hint="the sink merges partitions before reading them (coalesce): repartition "
                    "instead, or use foreach_batch",
                )
            _must_have_as_many(header, kept.rows)
            return kept.answer
        if (begun := run.begun.get(header.partition)) is not None:
            _must_have_as_many(header, begun.header.rows)
        if self._sealed or not 0 <= header.partition < run.partitions:
            raise StaleRunError(
                f"epoch {header.epoch} has no open channel for partition {header.partition}"
            )
        return None

    def fired(self, header: ChannelHeader) -> Answer:
        """Return the rows that fired when the epoch opened, for the channel of partition 0 only."""
        assert self._run is not None
        return self._run.fired if header.partition == 0 else Answer()

    def ends_epoch(self, header: ChannelHeader) -> bool:
        """Tell whether the epoch's input is complete with this channel."""
        assert self._run is not None
        return len(self._run.kept) + len(header.closes) == self._run.partitions

    def keep(self, header: ChannelHeader, answer: Answer, rows: int, busy_s: float) -> None:
        """Close a channel, and keep its answer for a task that closes it again."""
        assert self._run is not None
        for channel in header.closes:
            kept = answer if channel == header.partition else Answer()
            self._run.kept[channel] = _Kept(header.attempt, header.rows, kept)
            self._run.closed_ms[channel] = round(self._wall_s() * 1000, 1)
        self._run.rows += rows
        self._run.busy_s += busy_s

    def close_epoch(self) -> Answer:
        """Return the epoch's end-of-epoch output. If that fails, give up the run."""
        try:
            return self.operator.close()
        except BaseException:
            self.give_up_run()
            raise

    def give_up_run(self) -> None:
        """Roll back the run that is open, if there is one."""
        if self._run is not None:
            assert self.version is not None
            self.rollback(self.version, self._run.run)

    @property
    def complete(self) -> tuple[int, int] | None:
        """(epoch, run) whose channels have all closed and which is not sealed yet; None if there is none."""
        if self._run is None or not self._run.complete or self._sealed:
            return None
        return self._run.epoch, self._run.run

    def seal(self, epoch: int, run: int, partitions: int) -> tuple[pa.Table, HostVitals]:
        """Return the delta and vitals of a complete epoch. A repeated call returns the same delta.

        The epoch can still be rolled back.
        """
        if partitions == 0 and self._sealed and self._run is not None and self._run.epoch < epoch:
            self._finish()
        if self._run is None and partitions == 0 and self.version == epoch - 1:
            self._run = _Run(epoch, run, 0, EpochTime(epoch, 0), Answer())
        current = self._run
        if current is None or (current.epoch, current.run) != (epoch, run):
            raise StaleRunError(f"run {run} of epoch {epoch} is not open: {self}")
        if not current.complete:
            raise ProtocolError(
                f"epoch {epoch} is not complete: {len(current.kept)} of {current.partitions} "
                "partitions are closed"
            )
        self._sealed = True
        vitals = self.vitals(current.rows, current.busy_s * 1000)
        return self.operator.table.delta(), replace(vitals, closed_ms=current.closed_ms)

    def rollback(self, version: int, run: int = -1) -> None:
        """Give up the current epoch, sealed or not, and return to `version`.

        With a `run`, that run of the next epoch is given up too: a channel of it that still waits for
        something cannot open it again.
        """
        if self._run is not None and self._sealed and self._run.epoch == version:
            # The epoch was committed, and no channel of the next one has arrived.
            self._finish()
        if self.version != version:
            raise ProtocolError(f"cannot roll back to version {version}: {self}")
        self.return_to(version)
        self._given_up = max(self._given_up, (version + 1, run))
        self._run, self._sealed = None, False

    def _admit(self, header: ChannelHeader) -> None:
        """Get to a state where this header's run is open or can be opened; refuse a run that was given up."""
        run = self._run
        if run is not None and (run.epoch, run.run) == (header.epoch, header.run):
            return
        if self.version is None:
            raise ProtocolError("this host has no slots assigned yet")
        now = (header.epoch, header.run)
        if now <= self._given_up or (run is not None and now < (run.epoch, run.run)):
            raise StaleRunError(f"run {header.run} of epoch {header.epoch} was given up")
        if run is not None and run.epoch == header.epoch:
            self.rollback(self.version, run.run)
        elif run is not None and self._sealed and header.epoch == run.epoch + 1:
            self._finish()
        if self._run is not None or header.epoch != self.version + 1:
            raise StaleRunError(f"epoch {header.epoch} cannot open: {self}")

    def _open(self, header: ChannelHeader) -> _Run:
        fired = self.operator.open(header.time)
        self._run = _Run(header.epoch, header.run, header.partitions, header.time, fired)
        return self._run

    def _finish(self) -> None:
        """Make the sealed epoch final: its manifest is written."""
        assert self._run is not None
        self.seal_version(self._run.epoch)
        self._run, self._sealed = None, False

    def __str__(self) -> str:
        if self._run is None:
            return super().__str__()
        state = "sealed" if self._sealed else f"{len(self._run.kept)}/{self._run.partitions} closed"
        return f"host at version {self.version}, epoch {self._run.epoch}.{self._run.run} {state}"


def _must_have_as_many(header: ChannelHeader, rows: int) -> None:
    """Refuse a task that is tried again if its input had another number of rows before."""
    if rows != header.rows:
        raise ChangedInputError(
            f"partition {header.partition} of epoch {header.epoch} had {rows:,} rows, "
            f"and {header.rows:,} when its task was tried again",
            hint="a source, and the DataFrame operations before the flow, must return the "
            "same rows when they are read again: do not use rand() and the like there",
        )
