"""The base class of operators whose state is all in one table, and the due times of entries.

Due times are a column beside the state, searched by one pass over plain numbers. There is no index that
a restore or a rollback would have to rebuild. The column holds a time in milliseconds, shifted so that
zero can mean "never" (see `stamp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError, in_step
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime, StepPlan
from penstock.operators.places import FirstPlaces, Places
from penstock.state.arrays import Array, physical
from penstock.state.keys.codec import Keys
from penstock.state.keys.encoding import is_text
from penstock.state.table.columns import Column
from penstock.state.table.table import KEY, ColumnTable
from penstock.state.variables.timers import ALL_TIMES, LIMIT


@contextmanager
def whole_or_not(table: ColumnTable) -> Iterator[None]:
    """Undo the changes made to the table inside the block if it raises an exception."""
    mark = table.savepoint()
    try:
        yield
    except BaseException:
        table.undo(mark)
        raise


def fits(schema: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a schema has all wanted columns, with types that compiled code can read as the wanted ones."""
    if schema.equals(wanted):
        return True
    types = dict(zip(schema.names, schema.types, strict=True))
    return all(field.name in types and _alike(types[field.name], field.type) for field in wanted)


def rows_of_lists(lists: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in a column of lists of structs. Raises ProtocolError if they are not of this schema."""
    rows = pa.RecordBatch.from_struct_array(lists.flatten())
    if not rows.schema.equals(schema):
        raise ProtocolError(
            f"nested rows have the columns {rows.schema.to_string()}",
            hint="couriers and hosts must run the same flow and version of Penstock",
        )
    return rows


def _alike(type: pa.DataType, wanted: pa.DataType) -> bool:
    if is_text(wanted):
        return is_text(type)
    same = physical(wanted)
    return type.id == wanted.id if same is None else physical(type) == same


class OutputRows(NamedTuple):
    """Output rows and their places; the places are None if the step is not ordered."""

    batch: pa.RecordBatch
    places: Places | None


def answer_of(outputs: Iterable[OutputRows]) -> Answer:
    """An answer with these output rows."""
    answer = Answer()
    for batch, places in outputs:
        answer.batches.append(batch)
        if places is not None:
            answer.places.append(places)
    return answer


class TableOperator:
    """Base class of operators. A channel is applied whole or not at all; all state is in the table.

    A step defines `_take`, which puts a batch into the table and returns its immediate output. By default
    nothing falls due, and nothing is emitted when a round closes.
    """

    kinds: ClassVar[tuple[str, ...]] = (ROWS,)
    """Kinds of channels that the step accepts."""
    divisible: bool = True
    by_key: bool = True
    portable: bool = True
    wire: Mapping[str, pa.Schema] = {}
    """Kind of channel -> columns that its batches must have. Kinds without an entry are not checked."""

    def __init__(self, plan: StepPlan, table: ColumnTable, step_id: str, ordered: bool) -> None:
        self.table, self.output = table, plan.output
        self.step_id, self.ordered = step_id, ordered
        self._codec, self._firsts = plan.codec, FirstPlaces()
        self._time = EpochTime(0, 0)
        """The round's time. It is part of the epoch's plan, unlike the machine's clock."""

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The key of each row of these batches."""
        self._check(kind, batches)
        if kind == PARTIALS:
            return [self._codec.from_storage(batch.column(KEY)) for batch in batches]
        return [self._codec.encode(batch) for batch in batches]

    def _check(self, kind: str, batches: list[pa.RecordBatch]) -> None:
        """Refuse batches that no courier of this step sends, before compiled code reads their memory."""
        if kind not in self.kinds:
            raise ProtocolError(
                f"step {self.step_id!r} does not accept input of the kind {kind!r}",
                hint="couriers and hosts must run the same version of Penstock",
            )
        wanted = self.wire.get(kind)
        for batch in batches if wanted is not None else ():
            if not fits(batch.schema, wanted):
                raise ProtocolError(
                    f"step {self.step_id!r} does not accept {kind!r} with these columns: "
                    f"{', '.join(f'{field.name} {field.type}' for field in batch.schema)}",
                    hint="couriers and hosts must run the same flow and version of Penstock",
                )

    def due(self, time: EpochTime) -> dict[str, int]:
        """The entries that `fire` will read, as column -> limit."""
        return {}

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns that `due` may name."""
        return tuple(self.due(EpochTime(0, 0, 0)))

    def begin(self, time: EpochTime) -> None:
        """Begin a round at this time."""
        self._time = time
        self._firsts.clear()

    def fire(self) -> Answer:
        """Emit the rows that are due at the round's time."""
        return Answer()

    def open(self, time: EpochTime) -> Answer:
        """Begin a round and emit the rows that are due at its time."""
        self.begin(time)
        return self.fire()

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Apply one closed channel, whole or not at all."""
        self._check(kind, batches)
        each: Sequence[Places | None] = [None] * len(batches)
        if self.ordered:
            places = Places.none() if places is None else places
            if len(places) != sum(batch.num_rows for batch in batches):
                raise ProtocolError(
                    f"step {self.step_id!r} is ordered, but its records have no places",
                    hint="couriers and hosts must run the same flow and version of Penstock",
                )
            each = places.split(batches)
        with whole_or_not(self.table), in_step(self.step_id):
            return self._applied(kind, batches, each)

    def _applied(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Answer:
        """Put a channel's batches into the table. Returns their immediate output."""
        each = zip(batches, places, strict=True)
        return answer_of(out for batch, where in each for out in self._take(kind, batch, where))

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        """Put one batch into the table. Returns its immediate output."""
        raise NotImplementedError

    def close(self) -> Answer:
        """Emit the rows that come once per round."""
        return Answer()

    def rollback(self) -> None:
        """Return to the newest durable version."""
        self.table.rollback()
        self._firsts.clear()
        self._time = EpochTime(0, 0)

    def shutdown(self) -> None:
        """Do nothing: there are no resources beside the table."""

    # -- places of output

    def _note(self, keys: Keys, entries: Array, places: Places | None) -> None:
        """Note that records with these places touched the entries of these keys."""
        if places is not None:
            self._firsts.note(entries, keys.hashes, places)

    def _first(self, entries: Array) -> Places | None:
        """Output places of these entries' end-of-round rows."""
        return self._firsts.of(entries) if self.ordered else None

    def _due_places(self, stamps: Array, entries: Array, final: bool) -> Places | None:
        """Output places of rows of these entries that fell due at these stamps (see `stamp`)."""
        if not self.ordered:
            return None
        return Places.of_due(stamps - LIMIT, self.table.keys(entries).hashes, final)


Clock = Literal["event", "processing"]
NEVER = 0


def due_column(clock: Clock) -> Column:
    """The column of due times by the watermark ("event") or by the time of day ("processing")."""
    return Column(f"__due_{clock}", pa.int64())


def stamp(times_ms: Array) -> Array:
    """Due-column values for times in milliseconds since 1970."""
    return np.clip(times_ms, -LIMIT + 1, ALL_TIMES) + LIMIT


def limits(time: EpochTime, *clocks: Clock) -> dict[str, int]:
    """The greatest value that is due at this time, for the due column of each clock.

    The event clock is left out before there is a watermark. When a bounded input has ended, everything is
    due by both clocks.
    """
    now: dict[Clock, int | None] = {"event": time.watermark_ms, "processing": time.now_ms}
    if time.final:
        now = {"event": ALL_TIMES, "processing": ALL_TIMES}
    return {f"__due_{c}": at + LIMIT for c in clocks if (at := now[c]) is not None}


def due_entries(table: ColumnTable, limits: Mapping[str, int]) -> Array:
    """The host's own entries that are due, ascending; `limits` is as for `Operator.due`."""
    due: Array = np.zeros(0, np.bool_)
    for name, limit in limits.items():
        when = table.column(name)
        by_column = (when != NEVER) & (when <= limit)
        due = due | by_column if len(due) else by_column
    return table.own(np.flatnonzero(due))
