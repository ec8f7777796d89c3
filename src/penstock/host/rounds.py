"""A host in a live run, as a pure state machine: frames of couriers in, answers out.

It uses no sockets and no threads: `host.streams` is the shell around it. Each courier's frames come in
order. Their rows are applied in *rounds*: a round takes all rows that have arrived by then. Control messages
are points in each courier's stream:

- A *checkpoint*: frames after it in one stream wait until it has come in all streams (alignment). Then the
  changes since the last checkpoint are gathered, and the next epoch begins.
- A *reroute*: the new host of a slot owns it from the first copy of the message on. The old host gives it
  up when the message has come from all couriers, because then no more rows of it can come.

Rows whose state is missing are held back, key by key and in order, until it has been fetched. All other
rows overtake them. Neither time nor a checkpoint overtakes held rows, and their slots do not leave.

If more than a round of rows waits, a reroute overtakes the rows that it does not concern. Slots come with
the first copy of the message that is in a queue. They leave when all copies are in queues, after their own
rows, which are taken out of the queues. A reroute overtakes no checkpoint. Couriers are told of it in its
turn, and until then time stands still: they must not apply a watermark to slots that have left.

Output goes to one courier. In an ordered flow a round has the rows of one courier, and their output goes
back to that courier, with places. Rows that fire go to one courier, the same one for all hosts of the step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock import codec
from penstock.errors import ProtocolError
from penstock.exchange.aside import Aside
from penstock.host.chunks import NOBODY, ChannelChunk, Round, Rounded
from penstock.host.held_rows import HeldRows, Piece, taken
from penstock.host.holdings import Holdings
from penstock.host.residence import FrozenCopy, Need, NeedDue
from penstock.host.round_work import RoundWork, work_of
from penstock.host.run_time import RunTime
from penstock.host.vitals import HostVitals
from penstock.operators.operator import EpochTime
from penstock.operators.places import Places, split_serial, taken_rows, with_both
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array
from penstock.wire.live import (
    Back,
    CheckpointMessage,
    Chunk,
    Frame,
    Message,
    Reroute,
    Time,
    output_courier,
)

MOST_ROWS = 1 << 16
"""Number of rows after which a round takes no more chunks, so that answers do not wait for long.

If more rows than that wait, reroutes overtake them.
"""
_UNKNOWN = Time(None)


@dataclass(frozen=True)
class Sent:
    """A message to a courier: rows of the step's output, facts, or both."""

    courier: int
    rows: pa.RecordBatch | None = None
    back: Back | None = None

    def with_facts(self, facts: Back) -> Sent:
        """Return the same message with the progress that a courier hears after each `work` added."""
        if self.back is not None:
            names = ("took", "done", "watermark_ms", "busy_us")
            progress = {name: getattr(facts, name) for name in names}
            if facts.watermark_ms is None:
                del progress["watermark_ms"]
            facts = replace(self.back, **progress)
        return Sent(self.courier, self.rows, facts)


@dataclass(frozen=True)
class GatheredEpoch:
    """The deltas of an epoch that a host has to write. Later deltas win over earlier ones."""

    epoch: int
    deltas: tuple[pa.Table, ...]
    vitals: HostVitals
    place: int = 0
    """Number of the step, in a host of several steps."""


@dataclass
class Worked:
    """The outcome of `Rounds.work`, for the shell to carry out."""

    sent: list[Sent] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    """State to fetch. The shell calls `Rounds.fetched` after each of them."""
    gathered: list[GatheredEpoch] = field(default_factory=list)
    acted: bool = False
    """Whether a message took effect, so that requests for copies of slots may be answered now."""
    trickle_mb_s: float | None = None
    """New highest rate of background fetching, in megabytes per second; None: unchanged."""
    rows: int = 0
    """Number of rows that were applied."""
    busy_s: float = 0.0
    """Seconds spent on them."""
    more: bool = False
    """Whether there is more to do at once."""


@dataclass
class _Courier:
    """A courier's queue of frames, and the progress that it was told."""

    frames: deque[tuple[Frame, pa.RecordBatch | None, int]] = field(default_factory=deque)
    """Queue of frames that were not taken yet: (frame, rows, bytes of the rows)."""
    waiting: int = 0
    """Bytes of rows in the queue."""
    rows: int = 0
    """Number of rows in the queue."""
    ahead: deque[Message] = field(default_factory=deque)
    """Control messages in the queue."""
    time: Time = _UNKNOWN
    barrier: CheckpointMessage | None = None
    """Checkpoint at which this courier's stream waits for the others."""
    left: bool = False
    """Whether the courier has left the run."""
    wakes: bool = False
    """Whether it was idle, and waits for the host's watermark before it sends rows again."""
    newest: int = -1
    """Number of the newest chunk that was taken."""
    looked_at: list[int] = field(default_factory=list)
    """Numbers of chunks that were taken, and not yet confirmed to the courier as applied."""
    confirmed: int = -1
    """Number of the chunk up to which the courier was told that all were applied."""
    busy_s: float = 0.0
    """Seconds of work that the courier was not told of yet."""

    @property
    def next_reroute(self) -> Message | None:
        """The reroute that is the next message in the queue; None if the next message is another one."""
        ahead = self.barrier is None and self.ahead and self.ahead[0].reroute is not None
        return self.ahead[0] if ahead else None

    def pull(
        self, of: Callable[[str, pa.RecordBatch], Array]
    ) -> Iterator[tuple[Chunk, pa.RecordBatch]]:
        """Take those rows out of the queue, before its next message, that a function selects."""
        frames = list(self.frames)
        for place, (frame, batch, nbytes) in enumerate(frames):
            if frame.message is not None:
                break
            if frame.chunk is None or batch is None:
                continue
            wanted = of(frame.chunk.kind, batch)
            if wanted.any():
                rest = taken(batch, np.flatnonzero(~wanted))
                self.rows -= batch.num_rows - rest.num_rows
                frames[place] = frame, rest, nbytes
                yield frame.chunk, taken(batch, np.flatnonzero(wanted))
        self.frames = deque(frames)

    def applied(self, held: set[int]) -> tuple[int, tuple[int, ...]]:
        """Return the chunk up to which all were applied, and later chunks applied since the last call.

        `held` has the numbers of the chunks of which rows are held.
        """
        took = min([self.newest, *(number - 1 for number in held)])
        done = tuple(n for n in self.looked_at if n > took and n not in held)
        self.looked_at = [n for n in self.looked_at if n in held]
        return took, done


class Rounds:
    """One live run on one host. Calls must not overlap: the shell holds a lock."""

    def __init__(
        self,
        holdings: Holdings,
        host: str,
        run: int,
        couriers: int,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
        work: RoundWork | None = None,
        behind: Sequence[Holdings] = (),
    ) -> None:
        """Begin a run at the version of the holdings.

        A host of all steps passes its own executor as `work`, and the holdings of the steps `behind` the
        first. Their state is complete when the run begins, and no slot of theirs moves.
        """
        assert holdings.version is not None
        self.run, self.epoch = run, holdings.version + 1
        self.acted = -1
        """Number of the newest control message that took effect."""
        self._holdings, self._operator, self._host = holdings, holdings.operator, host
        self._all = (holdings, *behind)
        self._couriers = [_Courier() for _ in range(couriers)]
        self._work = work_of(holdings.operator) if work is None else work
        # Rows that fire on several hosts can only be sorted in one place.
        self._ordered = self._operator.ordered
        step = host.rpartition("/")[0]
        self._output = output_courier(step if self._ordered else host, couriers)
        self.refill: Callable[[], None] = lambda: None
        """Callback that passes newly arrived frames to `receive`."""
        self._clock = clock
        self._messages: dict[int, tuple[Message, set[int]]] = {}
        """Control messages, by number, that have not come from all couriers yet; and from whom they have."""
        self._pulled = self._left = -1
        """Numbers of the newest reroute that has overtaken rows, and of the newest whose slots have left."""
        self._held = HeldRows(holdings, by_slot=self._ordered)
        self._needs: list[Need] = []
        """State to fetch that `work` has not returned yet."""
        self.time = RunTime(holdings, self._work, now_ms, self._needs)
        self._behind: int | None = None
        """Newest reroute in effect, while due entries of its slots have not fired; None otherwise."""
        self._sent_watermark: int | None = None
        """Watermark that couriers were last told."""
        self._rows, self._busy_s = 0, 0.0

    # -- events

    def receive(
        self, courier: int, frame: Frame, rows: pa.RecordBatch | None = None, nbytes: int = 0
    ) -> None:
        """Queue a courier's next frame, with its rows and their size in bytes."""
        if not 0 <= courier < len(self._couriers) or (frame.chunk is None) != (rows is None):
            raise ProtocolError(f"courier {courier} sent an invalid frame: {frame}")
        sender = self._couriers[courier]
        sender.frames.append((frame, rows, nbytes))
        sender.waiting += nbytes
        if rows is not None:
            sender.rows += rows.num_rows
        if frame.message is not None:
            sender.ahead.append(frame.message)

    def waiting(self, courier: int) -> int:
        """Return the bytes of a courier's rows in its queue."""
        return self._couriers[courier].waiting

    def has_left(self, courier: int) -> bool:
        """Tell whether a courier has left, and all its frames were taken."""
        return self._couriers[courier].left

    def fetched(self, need: Need) -> None:
        """Note that a fetch is finished, with or without success."""
        if isinstance(need, NeedDue):
            self.time.fetched()
        else:
            self._held.answered()
        self.state_came()

    def state_came(self) -> None:
        """Note that entries or whole slots were installed."""
        self._held.state_came()

    def spent(self, seconds: float) -> None:
        """Add seconds spent on rows."""
        self._busy_s += seconds
        for courier in self._couriers:
            courier.busy_s += seconds

    def spent_on(self, outcome: Worked, seconds: float) -> None:
        """Add seconds spent on an outcome that was not sent yet, and include them in its messages."""
        self.spent(seconds)
        last = {sent.courier: place for place, sent in enumerate(outcome.sent) if sent.back}
        for number, place in last.items():
            courier, sent = self._couriers[number], outcome.sent[place]
            assert sent.back is not None
            busy_us = sent.back.busy_us + int(courier.busy_s * 1e6)
            outcome.sent[place] = replace(sent, back=replace(sent.back, busy_us=busy_us))
            courier.busy_s = 0.0

    def work(self) -> Worked:
        """Do what can be done now. If there are many rows, do part of them, and set `more` in the outcome.

        Between two calls answers leave, and other hosts can fetch slots that have left.
        """
        outcome = Worked()
        while self._advance(outcome):
            overtook = outcome.acted and self._left > self.acted
            if outcome.rows >= MOST_ROWS or overtook:
                outcome.more = True
                break
        self._tell(outcome)
        outcome.needs, self._needs[:] = list(self._needs), []
        return outcome

    def wakes_in_ms(self) -> int | None:
        """Return the milliseconds after which to call `work` again if no frame comes; None: not needed."""
        return self.time.wakes_in_ms(self.epoch)

    # -- a round

    def _advance(self, outcome: Worked) -> bool:
        """Do one round and its consequences; False if there was nothing to do."""
        self.time.go_on()
        behind = -1 if self._left > self.acted else self._held.first_serial
        fires = self.time.passes(behind, self.epoch)
        pieces, need = self._held.released()
        self._ask_for(need)
        moved = self._overtakes(pieces, outcome) or self._absorb(pieces, outcome)
        if pieces or fires:
            self._round(pieces, fires, outcome)
        acted = self._acts(outcome) or self._cuts(outcome) or self._ends(outcome)
        acted = self._catches_up(outcome) or acted
        time_goes_on = self.time.is_behind and (bool(pieces) or moved)
        return (
            acted
            or fires
            or time_goes_on
            or any(courier.frames and courier.barrier is None for courier in self._couriers)
        )

    def _round(self, pieces: list[Piece], fires: bool, outcome: Worked) -> None:
        """Fire due entries and apply rows, in one round for all couriers or one for each.

        Where rounds overlap, rounds of newly arrived rows begin before these are finished.
        """
        began, work, rows = self._clock(), self._work, 0
        time = self.time.now(self.epoch)
        rounded: list[Rounded] = []
        try:
            if fires:
                rounded.append(Rounded(Round(NOBODY, time), work.fire(time)))
                self.time.note_fired(time)
            while pieces:
                for chunk in self._chunks(pieces, time):
                    rows += chunk.rows
                    work.submit(chunk)
                pieces = self._more(MOST_ROWS - rows) if work.overlaps else []
            rounded += work.drain()
        except BaseException:
            work.abandon()
            raise
        for result in rounded:
            self._give(result, outcome)
        took_s = self._clock() - began
        self._rows += rows
        outcome.rows, outcome.busy_s = outcome.rows + rows, outcome.busy_s + took_s
        self.spent(took_s)

    def _chunks(self, pieces: list[Piece], time: EpochTime) -> Iterator[ChannelChunk]:
        """Yield the rows as chunks, with neighbours joined where that is allowed."""
        apart = self._work.apart

        def alike(piece: Piece) -> tuple[str, pa.Schema, int]:
            return piece[0], piece[1].schema, piece[2] if apart else NOBODY

        for (kind, _, courier), group in groupby(pieces, alike):
            batches = [batch for _, batch, _ in group]
            whole = batches if len(batches) == 1 else [pa.concat_batches(batches)]
            yield ChannelChunk(kind, *split_serial(whole, courier), Round(courier, time))

    def _more(self, most: int) -> list[Piece]:
        """Return newly arrived rows, up to this many, that can be applied before anything else is taken."""
        pieces = list[Piece]()
        if self._holdings.residence.any_partial or self._held.chunks:
            return pieces
        self.refill()
        for number, courier in enumerate(self._couriers):
            while most > 0 and courier.barrier is None and courier.frames:
                if courier.frames[0][0].chunk is None:
                    break
                frame, batch = self._next_frame(courier)
                assert batch is not None and frame.chunk is not None
                pieces.append((frame.chunk.kind, batch, number))
                most -= batch.num_rows
        return pieces

    def _give(self, rounded: Rounded, outcome: Worked) -> None:
        """Add the output of a round to the outcome.

        It goes to one courier, so that it keeps its order. In an ordered flow each row goes to the courier
        of the record that caused it.
        """
        answer, taker = rounded.answer, self._taker
        self.time.note_due(answer.due)
        if self._work.answers_back and rounded.round.courier != NOBODY:
            taker = rounded.round.courier
        for number, batch in enumerate(answer.batches):
            if batch.num_rows and not answer.places:
                outcome.sent.append(Sent(taker, batch))
            elif batch.num_rows:
                outcome.sent += self._by_cause(batch, answer.places[number])
        aside = Aside(answer.dead, answer.late)
        if aside:
            outcome.sent.append(Sent(taker, None, Back(aside=codec.to_plain(aside))))

    def _by_cause(self, batch: pa.RecordBatch, places: Places) -> Iterator[Sent]:
        due, rows = places.of_time, with_both(batch, places)
        records = np.flatnonzero(~due)
        if len(records):
            caused = rows if len(records) == len(due) else taken_rows(rows, records)
            yield Sent(int(places.major[records[0]]), caused)
        if len(records) < len(due):
            fired = rows if not len(records) else taken_rows(rows, np.flatnonzero(due))
            yield Sent(self._taker, fired, Back(watermark_ms=self.time.watermark))

    @property
    def _taker(self) -> int:
        """Number of the courier that gets the output: the chosen one, or the first if that one has left."""
        numbers = [n for n, courier in enumerate(self._couriers) if not courier.left]
        return self._output if self._output in numbers or not numbers else numbers[0]

    @property
    def _active(self) -> set[int]:
        """Numbers of the couriers that have not left."""
        return {n for n, courier in enumerate(self._couriers) if not courier.left}

    # -- frames

    def _absorb(self, pieces: list[Piece], outcome: Worked) -> bool:
        """Take frames from the queues, each courier's in order, up to one round; tell if there were any."""
        rows, moved = sum(batch.num_rows for _, batch, _ in pieces), False
        held = len(self._held.chunks)
        for number, frame, batch in self._frames():
            moved = True
            if batch is not None and frame.chunk is not None:
                rows += batch.num_rows
                self._take_in(number, frame.chunk, batch, pieces)
            elif frame.message is not None:
                self._note_message(number, frame.message, outcome)
            elif frame.leave:
                self._couriers[number].left = True
            elif frame.time is not None:
                courier = self._couriers[number]
                courier.wakes = courier.time.idle and not frame.time.idle
                courier.time = frame.time
                times = [other.time for other in self._couriers if not other.left]
                if self.time.hear(times, self._held.next_serial, self.epoch):
                    break
            if rows >= MOST_ROWS:
                break
        self._ask_for(self._held.need(self._held.chunks[held:]))
        return moved

    def _take_in(
        self, courier: int, chunk: Chunk, batch: pa.RecordBatch, pieces: list[Piece]
    ) -> None:
        free = self._held.hold(courier, chunk, batch)
        if free is not None and free.num_rows:
            pieces.append((chunk.kind, free, courier))

    def _overtakes(self, pieces: list[Piece], outcome: Worked) -> bool:
        """Let reroutes overtake rows that they do not concern, if many rows wait.

        Returns whether the rows of slots that leave were taken out of the queues.
        """
        if self._ordered or sum(courier.rows for courier in self._couriers) <= MOST_ROWS:
            return False
        following = {n: self._couriers[n].next_reroute for n in self._active}
        for message in following.values():
            if message is not None and message.number not in self._messages:
                self._learn(message, set(), outcome)
        number = min(self._messages, default=-1)
        if number <= self._pulled:
            return False
        message, seen = self._messages[number]
        behind, leaving = sorted(self._active - seen), self._leaving(message)
        if not behind or not leaving or any(following[n] != message for n in behind):
            return False
        moves = np.zeros_like(self._held.slots)
        moves[leaving] = True

        def moving(kind: str, batch: pa.RecordBatch) -> Array:
            (keys,) = self._operator.keys(kind, [batch])
            leaves: Array = moves[self._operator.table.slot_map.of(keys.hashes)]
            return leaves

        held, self._pulled = len(self._held.chunks), number
        for n in behind:
            for chunk, batch in self._couriers[n].pull(moving):
                self._take_in(n, chunk, batch, pieces)
        self._ask_for(self._held.need(self._held.chunks[held:]))
        return True

    def _ask_for(self, need: Need | None) -> None:
        if need is not None:
            self._needs.append(need)

    def _frames(self) -> Iterator[tuple[int, Frame, pa.RecordBatch | None]]:
        """Take frames of couriers that are not at a checkpoint: one of each in turn, each in order."""
        going = True
        while going:
            going = False
            for number, courier in enumerate(self._couriers):
                if courier.frames and courier.barrier is None:
                    going = True
                    yield number, *self._next_frame(courier)

    def _next_frame(self, courier: _Courier) -> tuple[Frame, pa.RecordBatch | None]:
        frame, batch, nbytes = courier.frames.popleft()
        courier.waiting -= nbytes
        if batch is not None:
            courier.rows -= batch.num_rows
        if frame.message is not None:
            courier.ahead.popleft()
        if frame.chunk is not None:
            courier.newest = frame.chunk.number
            courier.looked_at.append(frame.chunk.number)
        return frame, batch

    def _note_message(self, courier: int, message: Message, outcome: Worked) -> None:
        if message.checkpoint is not None:
            self._couriers[courier].barrier = message.checkpoint
            return
        known = self._messages.get(message.number)
        if known is not None:
            known[1].add(courier)
            return
        self._learn(message, {courier}, outcome)

    def _learn(self, message: Message, seen: set[int], outcome: Worked) -> None:
        self._messages[message.number] = (message, seen)
        if message.reroute is not None:
            self._takes(message.reroute, outcome)

    def _leaving(self, message: Message) -> list[int]:
        """Return the slots that a message moves away from this host."""
        handings = message.reroute.handings if message.reroute is not None else ()
        return [slot for h in handings if h.source == self._host for slot in h.slots]

    def _takes(self, reroute: Reroute, outcome: Worked) -> None:
        """Own the slots that a reroute moves to this host."""
        for handing in reroute.handings:
            must_be_slots(handing.slots, len(self._held.slots))
            if handing.target == self._host:
                place = handing.source_location
                source = FrozenCopy(place, reroute.number, self.run) if place else None
                slots = np.array(handing.slots, np.int64)
                self._holdings.take(slots, source, reroute.whole, reroute.trickle_mb_s > 0)
                outcome.trickle_mb_s = reroute.trickle_mb_s

    def _acts(self, outcome: Worked) -> bool:
        """Give up the slots of reroutes, once no more rows of them can come, and tell the couriers."""
        acted, active = False, self._active
        for number, (message, seen) in sorted(self._messages.items()):
            leave, passed = self._leaving(message), active <= seen
            if not (passed or number == self._pulled) or self._held.slots[leave].any():
                break
            if leave and number > self._left:
                self._holdings.give(np.array(leave, np.int64), number, self.run)
                self._left, acted, outcome.acted = number, True, True
            if not passed:
                break
            del self._messages[number]
            if message.reroute is not None:
                self._behind = number
            self._tell_all(outcome, Back(message=number))
            self.acted, acted, outcome.acted = number, True, True
        return acted

    def _catches_up(self, outcome: Worked) -> bool:
        """Tell couriers when all entries that came with slots, and were already due, have fired."""
        if self._behind is None:
            return False
        if not self.time.has_fired(self.epoch):
            return False
        self._tell_all(outcome, Back(caught_up=self._behind))
        self._behind = None
        return True

    # -- checkpoints

    def _cuts(self, outcome: Worked) -> bool:
        """End the epoch if the checkpoint has come from all couriers and all work before it is done."""
        barriers = [courier.barrier for courier in self._couriers if not courier.left]
        if not barriers or any(barrier is None for barrier in barriers):
            return False
        if self._held.chunks or self._messages:
            return False
        checkpoint = barriers[0]
        assert checkpoint is not None
        if any(barrier != checkpoint for barrier in barriers):
            raise ProtocolError(f"couriers are at different checkpoints: {barriers}")
        spent = self._work.spent() or [(self._rows, self._busy_s)]
        for place, (holdings, (rows, busy_s)) in enumerate(zip(self._all, spent, strict=True)):
            vitals = holdings.vitals(rows, busy_s * 1000)
            vitals = replace(vitals, watermark_ms=self.time.watermark)
            deltas = holdings.cut(checkpoint.epoch)
            gathered = GatheredEpoch(checkpoint.epoch, tuple(deltas), vitals, place)
            outcome.gathered.append(gathered)
            holdings.settle(checkpoint.durable)
        self.epoch = checkpoint.epoch + 1
        self._rows, self._busy_s = 0, 0.0
        for courier in self._couriers:
            courier.barrier = None
        self._tell_all(outcome, Back(message=checkpoint.number))
        self.acted = checkpoint.number
        return True

    # -- the end

    def _ends(self, outcome: Worked) -> bool:
        """Close all windows when the input of all couriers has ended."""
        times = [courier.time for courier in self._couriers if not courier.left]
        busy = self._held.chunks or any(courier.frames for courier in self._couriers)
        if self.time.ended or busy or not times or not all(t.final for t in times):
            return False
        if not self.time.has_all_due(replace(self.time.now(self.epoch), final=True)):
            return False
        self.time.ended = True
        self._round([], True, outcome)
        self._tell_all(outcome, Back(final=True))
        return True

    # -- messages to couriers

    def _tell_all(self, outcome: Worked, back: Back) -> None:
        outcome.sent.extend(Sent(number, None, back) for number in sorted(self._active))

    def _tell(self, outcome: Worked) -> None:
        """Tell couriers which chunks were applied, and the watermark, along with their other messages."""
        held: dict[int, set[int]] = {}
        for chunk in self._held.chunks:
            held.setdefault(chunk.courier, set()).add(chunk.number)
        watermark = self.time.watermark
        last = {sent.courier: place for place, sent in enumerate(outcome.sent)}
        for number in self._active:
            courier = self._couriers[number]
            # A courier that wakes is told only when time has reached all known watermarks.
            news = watermark != self._sent_watermark or (courier.wakes and not self.time.is_behind)
            took, done = courier.applied(held.get(number, set()))
            if took == courier.confirmed and not done and not news and number not in last:
                continue
            facts = Back(
                took=None if took == courier.confirmed else took,
                done=done,
                watermark_ms=watermark if news else None,
                busy_us=int(courier.busy_s * 1e6),
            )
            courier.wakes = courier.wakes and not news
            place = last.get(number)
            if place is None:
                outcome.sent.append(Sent(number, None, facts))
            else:
                outcome.sent[place] = outcome.sent[place].with_facts(facts)
            courier.confirmed, courier.busy_s = took, 0.0
        self._sent_watermark = watermark
