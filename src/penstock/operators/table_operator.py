"""What operators have in common whose state is all in one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.operators.first_places import FirstPlaces
from penstock.operators.operator import ROWS, Answer
from penstock.operators.places import Places
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.table.table import ColumnTable
from penstock.state.variables.timers import LIMIT


@contextmanager
def whole_or_not(table: ColumnTable) -> Iterator[None]:
    """What is done to the table inside is undone by an exception."""
    mark = table.savepoint()
    try:
        yield
    except BaseException:
        table.undo(mark)
        raise


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


def places_of(
    ordered: bool, batches: Sequence[pa.RecordBatch], places: Places | None
) -> Sequence[Places | None]:
    """The places of each batch of a channel; None for each where the step is not ordered."""
    if not ordered:
        return [None] * len(batches)
    if places is None:
        places = Places.none()
    if len(places) != sum(batch.num_rows for batch in batches):
        raise ProtocolError(
            "records came without their places to a step that keeps order",
            hint="couriers and hosts must run the same flow and version of Penstock",
        )
    return places.split(batches)


class TableOperator(ABC):
    """Takes in channels whole or not at all; a rollback of the table is a rollback of it all."""

    table: ColumnTable
    kinds: ClassVar[tuple[str, ...]] = (ROWS,)
    """What channels may bring."""
    divisible: bool = True

    def __init__(self, step_id: str, ordered: bool) -> None:
        self.step_id, self.ordered = step_id, ordered
        self._firsts = FirstPlaces()

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Take in one closed channel, whole or not at all."""
        if kind not in self.kinds:
            raise ProtocolError(
                f"step {self.step_id!r} cannot take input of the kind {kind!r}",
                hint="couriers and hosts must run the same version of Penstock",
            )
        each = places_of(self.ordered, batches, places)
        with whole_or_not(self.table):
            return answer_of(self._take_in(kind, batches, each))

    @abstractmethod
    def _take_in(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Iterable[Given]:
        """Put a channel's batches, with their places, into the table; gives the output that they
        cause at once."""

    def rollback(self) -> None:
        """Back to the last sealed version."""
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
        """Where belongs what the epoch gives of these entries at its end."""
        return self._firsts.of(entries) if self.ordered else None

    def _due_places(self, stamps: Array, entries: Array, final: bool) -> Places | None:
        """Where belongs what fell due, of these entries, at times as due columns hold them."""
        if not self.ordered:
            return None
        return Places.of_due(stamps - LIMIT, self.table.keys(entries).hashes, final)
