"""The operator of aggregates in sessions, which runs on hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.state import PassingState, unpack
from penstock.operators.aggregate.step import ROWS_PER_BATCH
from penstock.operators.changes import differing, signs
from penstock.operators.entry_groups import numbered, pieces
from penstock.operators.operator import PARTIALS
from penstock.operators.places import Places
from penstock.operators.table_operator import OutputRows, due_column, due_entries, stamp
from penstock.operators.window import kernels
from penstock.operators.window.sender import END, START
from penstock.operators.window.step import AGAIN, EMITTED, ONCE, ClosingOperator
from penstock.operators.window.windows import time_array
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags
from penstock.state.table.table import KEY, ColumnTable

if TYPE_CHECKING:
    from penstock.operators.window.plan import WindowPlan


class _Sessions(NamedTuple):
    """Sessions of some entries, ordered by entry and start."""

    entries: Array
    """The entries."""
    owner: Array
    """For each session, the position of its entry in `entries`."""
    ids: Array
    """For each session, the id of its row in the bags."""

    def where(self, mask: Array) -> _Sessions:
        return _Sessions(self.entries, self.owner[mask], self.ids[mask])


class SessionOperator(ClosingOperator):
    """Keeps the sessions of each key in a bag, as combined states, until they close.

    A session is a row of the bag and never changes: new input replaces it by a new row. An entry falls due
    with its first session.
    """

    kinds = (PARTIALS,)

    def __init__(self, plan: WindowPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        emitted = [(EMITTED, pa.int8())] if plan.stays else []
        self._schema = pa.schema(
            [(START, pa.int64()), (END, pa.int64()), *emitted, *plan.inner.partial_schema]
        )
        self._bags = Bags("sessions", self._schema)
        columns = [self._bags.column, due_column(plan.window.clock)]
        table = ColumnTable(plan.codec, columns, slots)
        super().__init__(plan, table, step_id, ordered)
        bounds = [(KEY, plan.codec.storage_type), (START, pa.int64()), (END, pa.int64())]
        self.wire = {PARTIALS: pa.schema([*bounds, *plan.inner.partial_schema])}
        self._bags.bind(table)
        self.portable = plan.emit == "close"  # else `close` compares the ids of stored rows

    def _changed(self, touched: Array) -> Iterable[OutputRows]:
        if self.plan.emit == "update":
            return self._rows(self._other(touched)[1], self._touching)
        return self._changes(touched)

    def _emitted_again(self, touched: Array) -> Iterable[OutputRows]:
        sessions = self._sessions(touched)
        again = self._emitted(sessions) == AGAIN
        yield from self._rows(sessions.where(again), self._touching)
        self.table.touch(touched)
        self._keep(self._marked(sessions, again))

    # -- input

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        keys, partials = unpack(self.plan.codec, batch)
        rows = self.table.upsert(keys)
        self._note(keys, rows, places)
        entries, _, owners = numbered(rows)
        old = self._sessions(entries)
        owners = np.concatenate([old.owner, owners])
        starts = np.concatenate([self._times(START, old), fixed_values(partials.column(START))])
        ends = np.concatenate([self._times(END, old), fixed_values(partials.column(END))])
        order = kernels.by_place(np.argsort(starts), owners, len(entries))
        became, owner, begin, end, fresh = kernels.merge_sessions(
            order, owners, starts, ends, len(old.ids)
        )
        ids = np.empty(len(owner), np.int64)
        ids[became[: len(old.ids)]] = old.ids
        ids[fresh] = self._merged(old, partials, became, fresh, begin[fresh], end[fresh])
        self._keep(_Sessions(entries, owner, ids))
        return ()

    def _merged(
        self,
        old: _Sessions,
        partials: pa.RecordBatch,
        became: Array,
        fresh: Array,
        begin: Array,
        end: Array,
    ) -> Array:
        """Store the sessions that are new or changed. Returns their ids."""
        number = np.cumsum(fresh) - 1
        before, now = became[: len(old.ids)], became[len(old.ids) :]
        state = PassingState(self.plan.inner, len(begin))
        used = fresh[before]
        state.merge(number[before[used]], self._bags.rows(old.ids[used]))
        state.merge(number[now], partials)
        columns = [fixed_array(begin, pa.int64()), fixed_array(end, pa.int64())]
        if self.plan.stays:
            ended = self._stamps(end) <= self._limit
            columns.append(fixed_array(np.where(ended, AGAIN, 0), pa.int8()))
        columns += state.combined(len(begin))
        return self._bags.put(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    # -- sessions close

    def _tidy(self) -> None:
        self._bags.tidy()

    def _closed(self) -> list[OutputRows]:
        entries = due_entries(self.table, self._limits)
        sessions = self._sessions(entries)
        ended = self._stamps(self._times(END, sessions)) <= self._limit
        gone = self._last_stamps(sessions) <= self._limit
        out: list[OutputRows] = []
        if self.plan.emit == "close":
            before = self._emitted(sessions) == ONCE if self.plan.stays else np.zeros_like(gone)
            out += self._rows(sessions.where(ended & ~before), self._closing)
        self.table.touch(entries)
        if self.plan.stays:
            sessions = self._marked(sessions, ended & ~gone)
        self._keep(sessions.where(~gone))
        self.table.remove(entries[self._bags.counts(entries) == 0])
        return out

    def _marked(self, sessions: _Sessions, emitted: Array) -> _Sessions:
        """The same sessions, with those in the mask `emitted` marked as emitted."""
        rows = self._bags.rows(sessions.ids[emitted])
        columns = rows.columns
        columns[2] = fixed_array(np.full(rows.num_rows, ONCE), pa.int8())
        ids = sessions.ids.copy()
        ids[emitted] = self._bags.put(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return sessions._replace(ids=ids)

    def _keep(self, sessions: _Sessions) -> None:
        """Store these as the sessions of their entries, which must be touched, and set the entries' due
        times."""
        self._bags.keep(sessions.entries, sessions.owner, sessions.ids)
        if self.plan.stays:
            open = self._emitted(sessions) == 0
            ends = self._stamps(self._times(END, sessions))
            stamps = np.where(open, ends, ends + self.plan.lateness_ms)
        elif self.plan.emit == "close":
            stamps = self._stamps(self._times(END, sessions))
        else:
            stamps = self._last_stamps(sessions)
        due = kernels.first_due(sessions.owner, stamps, len(sessions.entries))
        self.table.column(self._due)[sessions.entries] = due

    # -- reading sessions

    def _sessions(self, entries: Array) -> _Sessions:
        return _Sessions(entries, *self._bags.ids(entries))

    def _times(self, name: str, sessions: _Sessions) -> Array:
        return fixed_values(self._bags.values(name, sessions.ids))

    def _emitted(self, sessions: _Sessions) -> Array:
        return fixed_values(self._bags.values(EMITTED, sessions.ids))

    def _stamps(self, ends: Array) -> Array:
        """The closing times of sessions that end at `ends` (microseconds), in the format of the due
        column."""
        return stamp(-(-ends // 1000))

    def _last_stamps(self, sessions: _Sessions) -> Array:
        """The times from which on sessions take no more late rows, in the format of the due column."""
        return self._stamps(self._times(END, sessions)) + self.plan.lateness_ms

    def _other(self, entries: Array) -> tuple[_Sessions, _Sessions]:
        """The sessions that the round replaced, and the sessions that replace them. Sessions that have
        closed are in neither."""
        was, now = _Sessions(entries, *self._bags.before(entries)), self._sessions(entries)
        closed = self._last_stamps(was) <= self._limit
        if self._final:
            closed[:] = False
        return was.where(~np.isin(was.ids, now.ids) & ~closed), now.where(
            ~np.isin(now.ids, was.ids)
        )

    # -- output

    def _touching(self, sessions: _Sessions) -> Places | None:
        """Output places of sessions that the round has changed: those of their keys."""
        return self._first(sessions.entries[sessions.owner])

    def _closing(self, sessions: _Sessions) -> Places | None:
        """Output places of sessions that close."""
        if not self.ordered:
            return None
        stamps = self._stamps(self._times(END, sessions))
        return self._due_places(stamps, sessions.entries[sessions.owner], self._final)

    def _rows(
        self, sessions: _Sessions, places: Callable[[_Sessions], Places | None]
    ) -> Iterator[OutputRows]:
        """Yield the output rows of these sessions; `places` returns the places of sessions."""
        for rows in pieces(np.arange(len(sessions.ids)), ROWS_PER_BATCH):
            some = sessions.where(rows)
            batch = pa.RecordBatch.from_arrays(self._columns(some), schema=self.output)
            yield OutputRows(batch, places(some))

    def _changes(self, entries: Array) -> Iterator[OutputRows]:
        was, now = self._other(entries)
        old, new = self._columns(was), self._columns(now)
        same_old, same_new = self._unchanged(was, now, old, new)
        sides = ((-1, was, old, same_old), (1, now, new, same_new))
        for sign, sessions, columns, same in sides:
            for rows in pieces(np.flatnonzero(~same), ROWS_PER_BATCH):
                taken = fixed_array(rows, pa.int64())
                some = [column.take(taken) for column in columns]
                some.append(signs(sign, len(taken)))
                batch = pa.RecordBatch.from_arrays(some, schema=self.output)
                yield OutputRows(batch, self._first(sessions.entries[sessions.owner[rows]]))

    def _unchanged(
        self, was: _Sessions, now: _Sessions, old: list[pa.Array], new: list[pa.Array]
    ) -> tuple[Array, Array]:
        """Masks (bool) of the old and the new sessions whose output rows are the same."""
        owners = np.concatenate([was.owner, now.owner])
        starts = np.concatenate([self._times(START, was), self._times(START, now)])
        order = np.lexsort((starts, owners))
        first, second = order[:-1], order[1:]
        pairs = (owners[first] == owners[second]) & (starts[first] == starts[second])
        # sorting is stable, so the old session comes first
        before, after = first[pairs], second[pairs] - len(was.ids)
        before_rows, after_rows = fixed_array(before, pa.int64()), fixed_array(after, pa.int64())
        keys = len(self.plan.key_names)
        equal = ~differing(
            [column.take(before_rows) for column in old[keys:]],
            [column.take(after_rows) for column in new[keys:]],
        )
        same = np.zeros(len(was.ids), np.bool_), np.zeros(len(now.ids), np.bool_)
        same[0][before[equal]] = True
        same[1][after[equal]] = True
        return same

    def _columns(self, sessions: _Sessions) -> list[pa.Array]:
        """Key columns, window_start, window_end and aggregates of these sessions."""
        rows = self._bags.rows(sessions.ids)
        state = PassingState(self.plan.inner, rows.num_rows)
        state.merge(np.arange(rows.num_rows), rows)
        keys = self.plan.codec.decode(self.table.keys(sessions.entries[sessions.owner]))
        type = self.plan.time_type
        bounds = [time_array(fixed_values(rows.column(name)), type) for name in (START, END)]
        return [*keys, *bounds, *state.results(rows.num_rows)]
