"""What a step is made of: a plan, a sender in each courier, an operator on each host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, Self

import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import DeadLetter, LateRows
from penstock.operators.places import Places
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.parted import StepTable

ROWS, PARTIALS = "rows", "partials"
"""What the batches of a channel are: rows of the step's input, or partial states of it."""

CHANGE = "_change"
"""The column (int8) of a stream of changes: 1 where a row is put in, -1 where it is taken back."""

OnError = Literal["fail", "dead_letter"]
Emit = Literal["close", "update", "changes"]
"""When a step gives its rows: once, when their window closes; each epoch, those that changed, as they
are now; or each epoch what was taken back and what was put in, with a column `_change`."""


@dataclass(frozen=True)
class EpochTime:
    """The times that an epoch decides by. They come with the plan, so that a retry decides the same."""

    epoch: int
    now_ms: int
    watermark_ms: int | None = None
    final: bool = False
    """A bounded input has ended: every window closes, every event-time timer fires."""


@dataclass(frozen=True)
class Answer:
    """What applying one channel gave back."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """The places of each batch's rows; none at all where the operator is not ordered."""
    late: list[LateRows] = field(default_factory=list)
    """Rows that were too late for steps in the middle of a chain; elsewhere couriers find them."""
    due: dict[str, int] = field(default_factory=dict)
    """Column of due times -> the least in entries that a round has touched."""

    @staticmethod
    def joined(answers: Iterable[Answer]) -> Answer:
        """All of them in one, in this order."""
        whole = Answer()
        for answer in answers:
            whole.batches.extend(answer.batches)
            whole.dead.extend(answer.dead)
            whole.places.extend(answer.places)
            whole.late.extend(answer.late)
            for name, least in answer.due.items():
                whole.due[name] = min(least, whole.due.get(name, least))
        return whole


class Outgoing(NamedTuple):
    """A batch on its way to the hosts, with the hash of each row's key: that decides which host."""

    batch: pa.RecordBatch
    hashes: Array


class Unfit(NamedTuple):
    """Rows that a step cannot take, and why: refused, or set aside as dead letters."""

    rows: Array
    """bool, one per row."""
    reason: str
    """For example "a null in the key (user)"."""


def one_field(
    schema: pa.Schema,
    name: str,
    whose: str,
    what: str = "column",
    hint: str = "check the spelling, or select and rename the columns before this step",
) -> pa.Field:
    """The column of that name; FlowError if there is none, or more than one."""
    places = schema.get_all_field_indices(name)
    if len(places) == 1:
        return schema.field(places[0])
    found = "is not among the columns" if not places else "stands more than once among the columns"
    raise FlowError(f"{what} {name!r} of {whose} {found} {', '.join(schema.names)}", hint=hint)


def without_key(codec: KeyCodec, names: Sequence[str], batch: pa.RecordBatch) -> Unfit | None:
    """The rows that have a null in the key; None when there are none."""
    nulls = codec.null_rows(batch)
    return None if nulls is None else Unfit(nulls, f"a null in the key ({', '.join(names)})")


class StepPlan(ABC):
    """A compiled keyed step: couriers make senders of it, hosts an operator.

    Pickled, it is the arguments that it was made of, and is compiled anew where it arrives. `str`
    says what the step does, in a few words, for `explain`.
    """

    inputs: tuple[pa.Schema, ...]
    """What comes in: one schema, or two for a join."""
    key_names: list[str]
    """The key columns as users know them."""
    codec: KeyCodec
    """The codec of the table's keys, which decide slots."""
    output: pa.Schema
    merges: bool = False
    """Whether partial states of one key, made apart, can be merged into one."""
    has_timers: bool = False
    """Whether the step needs epochs even when its stream is quiet."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        plan = super().__new__(cls)
        plan.__dict__["_made_of"] = given, options
        return plan

    def __reduce__(self) -> tuple[Any, ...]:
        given, options = self.__dict__["_made_of"]
        return partial(type(self), **options), given

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows of an input that the step cannot take; None, quickly, when there are none."""
        return without_key(self.codec, self.key_names, batch)

    @abstractmethod
    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """The courier's part of the step, for one task.

        With `two_stage` it combines the rows of each key even where that is not worth it to the
        task: a key that is more than a host can take then costs its host as little as any other.

        What comes out is the same, also when only some tasks do so. Where nothing `merges`, the
        flag says nothing.
        """

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of a batch, or of some rows of one, that a sender gave."""
        return self.codec.encode(batch)

    @abstractmethod
    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        """The host's part of the step, with no state yet. If `ordered`, its answers have places."""


class Sender(Protocol):
    """What one courier does with its rows before they go to the hosts."""

    combines: bool
    """Whether it makes fewer records of the rows of a key. It turns False where that is not worth it,
    and may be set to False before the first row: then each row, or each of its windows, is a record."""
    late: list[tuple[int, pa.RecordBatch]]
    """(input, rows) that came behind the watermark and are not sent; whole input rows."""

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        """Take in a batch of fit rows; gives what can go now."""
        ...

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """All rows have come: what all that was sent is (ROWS or PARTIALS), and the rest of it."""
        ...


class RowSender:
    """Sends all rows as they are."""

    combines = False

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        return [Outgoing(batch, self._codec.encode(batch).hashes)]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()


class Operator(Protocol):
    """One step on one host. Pure and single-threaded: the host calls it under its lock.

    The order of calls in a round is `begin`, `fire` (or both in one: `open`), then `apply` for each
    channel or chunk, then `close`; after that the round ends with the table's `step`, or is rolled back
    with all others since the last durable version. In micro-batches an epoch is one round, which ends
    with the table's `seal`. What a round gives is about this round alone.
    """

    @property
    def table(self) -> StepTable:
        """All state of the step on this host."""
        ...

    output: pa.Schema
    ordered: bool
    """Whether answers say where each row belongs (see `operators.places`)."""
    divisible: bool
    """Whether a channel may be cut into pieces, applied one after the other, and the epoch gives the
    same. If not, only rows of different keys may be kept apart: what a row causes depends on those
    that come with it, such as the other side's in a join, or others of one call of a processor."""

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of these batches, one for each row: all that `apply` will look at in the table."""
        ...

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns that `due` may name, whatever the time is."""
        ...

    def due(self, time: EpochTime) -> dict[str, int]:
        """The entries that `fire` will look at, as column -> limit: those with a value above zero and up
        to the limit in one of the columns. Empty: it looks at none."""
        ...

    def begin(self, time: EpochTime) -> None:
        """A round begins at this time. Costs little, however large the table is."""
        ...

    def fire(self) -> Answer:
        """Give what the round's times make due: goes through the table. It may be left out where nothing
        that `due` names is in the table."""
        ...

    def open(self, time: EpochTime) -> Answer:
        """`begin` and `fire`, in full or, on an exception, not at all. The answer goes to the channel
        of partition 0."""
        ...

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Take in one closed channel, whole or not at all: on an exception nothing has changed.

        Where the step is `ordered`, `places` has the place of each record of all batches.
        """
        ...

    def close(self) -> Answer:
        """The last channel has closed: give the output that is due once per round."""
        ...

    def rollback(self) -> None:
        """Return to the newest durable version, the table included."""
        ...

    def shutdown(self) -> None:
        """The host ends: let user code close what it holds. Called once, after everything else."""
        ...
