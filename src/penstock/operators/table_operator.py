"""What operators share whose state is all in one table, and when entries of it fall due.

Due times are a column beside the state, found by one pass over plain numbers: there is no index that a
restore or a rollback would have to rebuild. The column holds a time in milliseconds, moved so that zero
can mean "never" (see `stamp`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError, overflow_in
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
    """What is done to the table inside is undone by an exception."""
    mark = table.savepoint()
    try:
        yield
    except BaseException:
        table.undo(mark)
        raise


def fits(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether all columns are there, and those that compiled code looks at are of the type it expects."""
    if found.equals(wanted):
        return True
    types = dict(zip(found.names, found.types, strict=True))
    return all(field.name in types and _alike(types[field.name], field.type) for field in wanted)


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    if is_text(wanted):
        return is_text(found)
    same = physical(wanted)
    return found.id == wanted.id if same is None else physical(found) == same


class Given(NamedTuple):
    """Output rows, and where they belong; None where the step is not ordered."""

    batch: pa.RecordBatch
    places: Places | None


def answer_of(given: Iterable[Given]) -> Answer:
    """What was given, as an answer."""
    answer = Answer()
    for batch, places in given:
        answer.batches.append(batch)
        if places is not None:
            answer.places.append(places)
    return answer


class TableOperator(ABC):
    """Takes in channels whole or not at all; a rollback of the table is a rollback of it all.

    Nothing falls due, and nothing is given when a round closes, where an operator does not say so.
    """

    kinds: ClassVar[tuple[str, ...]] = (ROWS,)
    """What channels may bring."""
    divisible: bool = True
    wire: Mapping[str, pa.Schema] = {}
    """Kind of channel -> columns that its batches must have; a kind that is not named is not checked."""

    def __init__(self, plan: StepPlan, table: ColumnTable, step_id: str, ordered: bool) -> None:
        self.table, self.output = table, plan.output
        self.step_id, self.ordered = step_id, ordered
        self._codec, self._firsts = plan.codec, FirstPlaces()

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of these batches."""
        self._check(kind, batches)
        if kind == PARTIALS:
            return [self._codec.from_storage(batch.column(KEY)) for batch in batches]
        return [self._codec.encode(batch) for batch in batches]

    def _check(self, kind: str, batches: list[pa.RecordBatch]) -> None:
        """Refuse what no courier of this step sends, before its memory is looked at."""
        if kind not in self.kinds:
            raise ProtocolError(
                f"step {self.step_id!r} cannot take input of the kind {kind!r}",
                hint="couriers and hosts must run the same version of Penstock",
            )
        wanted = self.wire.get(kind)
        for batch in batches if wanted is not None else ():
            if not fits(batch.schema, wanted):
                raise ProtocolError(
                    f"step {self.step_id!r} cannot take {kind!r} with these columns: "
                    f"{', '.join(f'{field.name} {field.type}' for field in batch.schema)}",
                    hint="couriers and hosts must run the same flow and version of Penstock",
                )

    def due(self, time: EpochTime) -> dict[str, int]:
        """The entries that `fire` will look at."""
        return {}

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns that `due` may name."""
        return tuple(self.due(EpochTime(0, 0, 0)))

    @abstractmethod
    def begin(self, time: EpochTime) -> None:
        """A round begins at this time."""

    def fire(self) -> Answer:
        """Give what the round's times make due."""
        return Answer()

    def open(self, time: EpochTime) -> Answer:
        """Begin a round, and give what its times make due."""
        self.begin(time)
        return self.fire()

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Take in one closed channel, whole or not at all."""
        self._check(kind, batches)
        each: Sequence[Places | None] = [None] * len(batches)
        if self.ordered:
            places = Places.none() if places is None else places
            if len(places) != sum(batch.num_rows for batch in batches):
                raise ProtocolError(
                    "records came without their places to a step that keeps order",
                    hint="couriers and hosts must run the same flow and version of Penstock",
                )
            each = places.split(batches)
        with whole_or_not(self.table), overflow_in(self.step_id):
            return self._applied(kind, batches, each)

    def _applied(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Answer:
        """Put a channel's batches, with their places, into the table; gives the output that they
        cause at once."""
        each = zip(batches, places, strict=True)
        return answer_of(given for one, where in each for given in self._take(kind, one, where))

    def _take(self, kind: str, batch: pa.RecordBatch, places: Places | None) -> Iterable[Given]:
        """Put one batch into the table; gives the output that it causes at once."""
        raise NotImplementedError

    def close(self) -> Answer:
        """Give what is due once per round."""
        return Answer()

    def rollback(self) -> None:
        """Back to the newest durable version."""
        self.table.rollback()
        self._firsts.clear()

    def shutdown(self) -> None:  # noqa: B027
        """Nothing is held outside the table."""

    # -- where output belongs

    def _note(self, keys: Keys, entries: Array, places: Places | None) -> None:
        """Records of these places touched the entries of these keys."""
        if places is not None:
            self._firsts.note(entries, keys.hashes, places)

    def _first(self, entries: Array) -> Places | None:
        """Output places of these entries' end-of-round rows."""
        return self._firsts.of(entries) if self.ordered else None

    def _due_places(self, stamps: Array, entries: Array, final: bool) -> Places | None:
        """Output places of what fell due for these entries, at times as due columns hold them."""
        if not self.ordered:
            return None
        return Places.of_due(stamps - LIMIT, self.table.keys(entries).hashes, final)


Clock = Literal["event", "processing"]
NEVER = 0


def due_column(clock: Clock) -> Column:
    """The column that says when an entry falls due by the watermark, or by the time of day."""
    return Column(f"__due_{clock}", pa.int64())


def stamp(times_ms: Array) -> Array:
    """What the column holds for times in milliseconds since 1970."""
    return np.clip(times_ms, -LIMIT + 1, ALL_TIMES) + LIMIT


def limits(time: EpochTime, *clocks: Clock) -> dict[str, int]:
    """Per column, the greatest value that is due at a time; columns without a clock are left out.

    When a bounded input has ended, everything is due by both clocks.
    """
    now: dict[Clock, int | None] = {"event": time.watermark_ms, "processing": time.now_ms}
    if time.final:
        now = {"event": ALL_TIMES, "processing": ALL_TIMES}
    return {f"__due_{c}": at + LIMIT for c in clocks if (at := now[c]) is not None}


def due_entries(table: ColumnTable, limits: Mapping[str, int]) -> Array:
    """The host's own entries that are due, ascending."""
    found: Array = np.zeros(0, np.bool_)
    for name, limit in limits.items():
        when = table.column(name)
        due = (when != NEVER) & (when <= limit)
        found = found | due if len(found) else due
    return table.own(np.flatnonzero(found))
