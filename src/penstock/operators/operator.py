"""The parts of a step: a plan, a sender in each courier, an operator on each host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol, Self

import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import DeadLetter, LateRows
from penstock.operators.places import Places
from penstock.operators.tagged import AllInputs
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.parted import StepTable

ROWS, PARTIALS = "rows", "partials"
"""Kinds of batches in a channel: rows of the step's input, or partial states made of them."""

CHANGE = "_change"
"""Name of the column (int8) of a change stream: 1 if a row is put in, -1 if it is taken back."""

BAG = "__bag"
"""Column of partial states with the rows of a key, as a list: a join's bags."""
_BAG_ROW = 0.7
"""Cost of a row in a bag for its host, in records: 0.33 to 1.07 was measured, so this is a choice."""


def host_records(batch: pa.RecordBatch) -> int:
    """The cost of a batch for its host, in records. A row in a bag is still paired there, so it counts.

    >>> bags = pa.record_batch({BAG: [[1] * 20, [2] * 10]})
    >>> host_records(bags), host_records(pa.record_batch({"sum(v)": [3, 4]}))
    (21, 2)
    """
    if BAG not in batch.schema.names:
        return int(batch.num_rows)
    return max(int(batch.num_rows), round(_BAG_ROW * len(batch.column(BAG).flatten())))


OnError = Literal["fail", "dead_letter"]
Emit = Literal["close", "update", "changes"]
"""When a step emits rows. "close": once, when their window closes. "update": each epoch, the current values
of rows that changed. "changes": each epoch, the rows taken back and put in, with a column `_change`."""


@dataclass(frozen=True)
class EpochTime:
    """The times of an epoch. They are part of its plan, so a retry makes the same decisions."""

    epoch: int
    now_ms: int
    """Time of day, in milliseconds since 1970."""
    watermark_ms: int | None = None
    """Watermark of the step, in milliseconds since 1970; None before there is one."""
    final: bool = False
    """Whether a bounded input has ended: then every window closes and every event-time timer fires."""


@dataclass(frozen=True)
class Answer:
    """The output of applying one channel."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """The places of each batch's rows; empty if the operator is not ordered."""
    late: list[LateRows] = field(default_factory=list)
    """Rows that were late for steps in the middle of a chain. For other steps couriers detect late rows."""
    due: dict[str, int] = field(default_factory=dict)
    """Column of due times -> the earliest due time among the entries that the round touched."""

    @staticmethod
    def joined(answers: Iterable[Answer]) -> Answer:
        """Concatenate answers, in this order."""
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
    """A batch to send to the hosts, with the hash of each row's key, which determines the host."""

    batch: pa.RecordBatch
    hashes: Array


class Unfit(NamedTuple):
    """Rows that a step cannot process, and the reason. They fail the step or become dead letters."""

    rows: Array
    """Mask (bool) of the unfit rows of a batch."""
    reason: str
    """The reason, for example "a null in the key (user)"."""


def one_field(
    schema: pa.Schema,
    name: str,
    whose: str,
    what: str = "column",
    hint: str = "check the spelling, or select and rename the columns before this step",
) -> pa.Field:
    """The field of this name. Raises FlowError if there is none, or more than one."""
    places = schema.get_all_field_indices(name)
    if len(places) == 1:
        return schema.field(places[0])
    problem = "is not among the columns" if not places else "occurs more than once in the columns"
    raise FlowError(f"{what} {name!r} of {whose} {problem} {', '.join(schema.names)}", hint=hint)


def without_key(codec: KeyCodec, names: Sequence[str], batch: pa.RecordBatch) -> Unfit | None:
    """The rows with a null in the key; None if there are none."""
    nulls = codec.null_rows(batch)
    return None if nulls is None else Unfit(nulls, f"a null in the key ({', '.join(names)})")


class StepPlan(ABC):
    """A compiled keyed step. Couriers create senders from it, hosts create an operator.

    A subclass sets the attributes below in its constructor and defines `operator` and `__str__`.
    It is pickled as its constructor's arguments and compiled again when unpickled. `str` is a short
    description of the step, for `explain`.
    """

    inputs: tuple[pa.Schema, ...]
    """Schemas of the inputs: one, or two for a join."""
    key_names: list[str]
    """Names of the key columns, as the user wrote them."""
    codec: KeyCodec
    """The codec of the table's keys. The hash of a key determines its slot."""
    output: pa.Schema
    merges: bool = False
    """Whether partial states of one key can be merged."""
    has_timers: bool = False
    """Whether the step needs epochs even when no rows arrive."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        plan = super().__new__(cls)
        plan.__dict__["_made_of"] = args, options
        return plan

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self.__dict__["_made_of"]
        return partial(type(self), **options), args

    def _read(self, input_schema: pa.Schema, key_names: Sequence[str], nulls: bool = False) -> None:
        """Set `inputs`, `key_names` and `codec` of a step with one input. Raises FlowError if the input
        lacks a key column."""
        self.inputs, self.key_names = (input_schema,), list(key_names)
        keys = [one_field(input_schema, name, "the key") for name in self.key_names]
        self.codec = KeyCodec(pa.schema(keys), nulls)

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows of an input that the step cannot process; None if there are none, which is cheap to check."""
        return without_key(self.codec, self.key_names, batch)

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Create the courier's part of the step, for one task. By default it sends all rows unchanged.

        With `two_stage` the sender always combines the rows of each key, even where that saves the task
        nothing. A hot key, too large for one host, then costs its host as little as any other key.

        The output is the same with and without it, even if only some tasks use it. The flag has no
        effect on a step that does not merge.
        """
        return RowSender(self.codec)

    @property
    def code(self) -> tuple[Any, ...]:
        """User code that senders run, in couriers and burst workers."""
        return ()

    @property
    def offloads(self) -> bool:
        """Whether burst workers can turn rows of the step into partial states."""
        return self.merges

    def partial_sender(self, time: EpochTime) -> Sender:
        """Create the burst worker's part of a step that `offloads`: it makes partial states of all rows."""
        return self.sender(time, two_stage=True)

    @cached_property
    def all_inputs(self) -> AllInputs:
        """The inputs as one stream."""
        return AllInputs(self.inputs)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of a batch made by a sender, or of a part of such a batch."""
        return self.codec.encode(batch)

    @abstractmethod
    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        """Create the host's part of the step, with empty state. If `ordered`, its answers have places."""


class Sender(Protocol):
    """A courier's part of a step: prepares the rows of one task for the hosts."""

    combines: bool
    """Whether the rows of a key are combined into fewer records. The sender sets it to False where that
    does not pay. It may be set to False before the first row: then each row, in each of its windows, is
    a record."""
    late: list[tuple[int, pa.RecordBatch]]
    """(input, rows) pairs of whole input rows that are behind the watermark and are not sent."""

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        """Take in a batch without unfit rows. Returns the batches that can be sent now."""
        ...

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns the kind of all batches (ROWS or PARTIALS) and the remaining batches."""
        ...


class RowSender:
    """Sends all rows unchanged."""

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

    Calls in a round come in this order: `begin` and `fire` (or `open`, which is both), `apply` for each
    channel or chunk, `close`. The round then ends with the table's `step`, or is rolled back with all
    other rounds since the last durable version. In micro-batches an epoch is one round, which ends with
    the table's `seal`. The output of a round covers that round alone.
    """

    @property
    def table(self) -> StepTable:
        """All state of the step on this host."""
        ...

    output: pa.Schema
    ordered: bool
    """Whether answers carry the place of each row (see `operators.places`)."""
    divisible: bool
    """Whether a channel may be cut into pieces and applied piece by piece with the same output. If not, all
    rows of a key must stay together: the output of a row depends on the rows that come with it, such as
    the other side's rows in a join, or the other rows of one processor call."""

    by_key: bool
    """Whether it is enough if all rows of a key are applied together. If not, the rows of a slot should be,
    too: one call of user code gets whole slots, and many small calls would cost more than the rows."""

    portable: bool
    """Whether rows may be applied on another host, to a copy of their keys' entries, and the changed entries
    be put into the table in the middle of a round, with the same output. Not if the output of `close`
    depends on which stored rows are the same ones as before the round."""

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The key of each row of these batches. `apply` reads no other keys from the table."""
        ...

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns that `due` may name at any time."""
        ...

    def due(self, time: EpochTime) -> dict[str, int]:
        """The entries that `fire` will read, as column -> limit: entries whose value in one of the columns
        is above zero and at most the limit. Empty if it reads none."""
        ...

    def begin(self, time: EpochTime) -> None:
        """Begin a round at this time. Cheap, however large the table is."""
        ...

    def fire(self) -> Answer:
        """Emit the rows that are due at the round's time. Scans the table. The call may be skipped if the
        table has no entry that `due` describes."""
        ...

    def open(self, time: EpochTime) -> Answer:
        """Call `begin` and `fire`; on an exception nothing has changed. The answer goes to the channel of
        partition 0."""
        ...

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Apply one closed channel. On an exception nothing has changed.

        If the step is `ordered`, `places` has the place of each record of all batches.
        """
        ...

    def close(self) -> Answer:
        """Emit the rows that come once per round. Called after the last channel has closed."""
        ...

    def rollback(self) -> None:
        """Return to the newest durable version, the table included."""
        ...

    def shutdown(self) -> None:
        """Let user code release its resources. Called once, as the last call, when the host ends."""
        ...
