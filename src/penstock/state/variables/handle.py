"""The state handle of user code: value, list and map state, and timers.

A step's whole state is one `ColumnTable`. The fields of a value are columns of it, a list or a map is one
column, and each variable has a column of bits that says where it is not empty. Variables are used in calls
for a key. The operator that makes the calls (see `variable`) decides when changes are written to the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import milliseconds
from penstock.state.arrays import filled_values, fixed_array, fixed_values, one_chunk
from penstock.state.keys.codec import KeyCodec
from penstock.state.table.table import ColumnTable
from penstock.state.variables.collection_state import ListState, MapState
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.timers import ExpiredTimer, TimeKind, TimerQueue, Timers
from penstock.state.variables.value_state import ValueState
from penstock.state.variables.variable import Cells, StateVariable, distinct

__all__ = ["ExpiredTimer", "ListState", "MapState", "StateHandle", "Timers", "ValueState"]

_State = TypeVar("_State", bound=StateVariable)


class StateHandle:
    """The argument of a processor's `init`, which declares state with it and keeps it to set timers.

    Schemas are DDL text such as "count long, name string", Arrow schemas or Spark struct types.
    `ttl`, the time from a value's last update until it expires, is in milliseconds, or text such as "10s".

    State can only be declared in `init`, since it defines the columns of the step's table. All other
    methods are for calls, and work on the state and timers of the call's key.
    """

    def __init__(self, codec: KeyCodec, timers: bool, by_batch: bool = False) -> None:
        self.cells, self._by_batch = Cells(codec), by_batch
        self.timers = TimerQueue(self.cells) if timers else None
        self._states: dict[str, StateVariable] = {}

    def get_value_state(self, name: str, schema: Any, ttl: int | str | None = None) -> ValueState:
        """Declare a state of one row per key. If it is declared already, return it."""
        state = ValueState(name, self.cells, _schema(name, schema), _ttl(ttl), self._by_batch)
        return self._declare(state)

    def get_list_state(self, name: str, schema: Any, ttl: int | str | None = None) -> ListState:
        """Declare a list of rows per key. With a `ttl`, each element expires on its own."""
        state = ListState(name, self.cells, _schema(name, schema), _ttl(ttl))
        return self._declare(state)

    def get_map_state(
        self, name: str, key_schema: Any, value_schema: Any, ttl: int | str | None = None
    ) -> MapState:
        """Declare a map from rows to rows per key. With a `ttl`, each pair expires on its own."""
        key, value = _schema(name, key_schema), _schema(name, value_schema)
        return self._declare(MapState(name, self.cells, key, value, _ttl(ttl)))

    def delete_if_exists(self, name: str) -> None:
        """Remove a declaration, so that the name is not part of the state."""
        self._must_be_init()
        self._states.pop(name, None)

    def register_timer(self, expiry_ms: int, time: TimeKind = "processing") -> None:
        """Set a timer: `handle_expired_timer` is called for this key when it expires.

        "processing" uses the epochs' time of day, "event" the watermark. Timers fire when an epoch opens,
        before its rows are processed. A timer that is already due fires when the next epoch opens.
        Registering the same time twice sets one timer.
        """
        (self.timers or self._queue).register(expiry_ms, time)

    def register_timers(
        self, batch: pa.RecordBatch, expiry_ms: pa.Array, time: TimeKind = "processing"
    ) -> None:
        """Set a timer for the key of each row, in `handle_batch`. A null expiry sets no timer."""
        self._each(batch, expiry_ms, time, delete=False)

    def delete_timers(
        self, batch: pa.RecordBatch, expiry_ms: pa.Array, time: TimeKind = "processing"
    ) -> None:
        """Delete a timer of the key of each row, if it exists, in `handle_batch`. A null expiry deletes
        none."""
        self._each(batch, expiry_ms, time, delete=True)

    def _each(self, batch: pa.RecordBatch, expiry_ms: Any, time: TimeKind, delete: bool) -> None:
        cells, queue = self.cells, self._queue
        keys, expiries = cells.keys_of(batch), one_chunk(expiry_ms)
        if len(expiries) != len(keys):
            raise TypeError(
                f"got {len(expiries)} expiries for {len(keys)} rows: pass one for each row"
            )
        rows = np.flatnonzero(filled_values(expiries.is_valid()))
        keys, times = keys.take(rows), expiries.take(fixed_array(rows, pa.int64())).cast(pa.int64())
        left = queue.change_many(keys, fixed_values(times), time, delete)
        if not len(left):
            return
        keys, change = keys.take(left), queue.delete if delete else queue.register
        groups, first = distinct(cells.codec, keys)
        chosen = keys.take(first)
        with cells.work(chosen, cells.table.find(chosen)):
            for group, row in zip(groups.tolist(), left.tolist(), strict=True):
                cells.begin(group)
                change(times[row].as_py(), time)

    def delete_timer(self, expiry_ms: int, time: TimeKind = "processing") -> None:
        """Delete a timer of the key, if it exists."""
        (self.timers or self._queue).delete(expiry_ms, time)

    def list_timers(self, time: TimeKind = "processing") -> Iterator[int]:
        """Expiry times of the key's timers of a kind, in milliseconds, earliest first."""
        return self._queue.expiries(time)

    @contextmanager
    def for_key(self, key: Any) -> Iterator[None]:
        """Use the state and timers of one key of the batch inside, in `handle_batch`.

        `get_many` sees the changes afterwards. An exception inside undoes them.
        """
        keys = self.cells.key(key if isinstance(key, (tuple, list)) else (key,))
        with self.cells.work(keys, self.cells.table.find(keys)):
            self.cells.begin(0)
            yield

    def make_table(self, slots: int) -> ColumnTable:
        """Create the table with the declared columns. The operator calls this after `init`."""
        self.cells.variables = list(self._states.values())
        if self.timers is not None:
            self.cells.variables.append(self.timers)
        return self.cells.make_table(slots)

    def state(self, name: str) -> StateVariable:
        """A declared variable by its name, for tools and tests."""
        if name not in self._states:
            known = ", ".join(self._states) or "none"
            raise FlowError(
                f"there is no state {name!r}", hint=f"use one of the declared states: {known}"
            )
        return self._states[name]

    @property
    def _queue(self) -> TimerQueue:
        if self.timers is None:
            raise FlowError(
                "the processor has no handle_expired_timer, so it cannot use timers",
                hint="define handle_expired_timer",
            )
        return self.timers

    def _declare(self, state: _State) -> _State:
        self._must_be_init()
        known = self._states.get(state.name)
        if known is None:
            self._states[state.name] = state
            return state
        if type(known) is not type(state) or known.columns != state.columns:
            raise FlowError(
                f"the state {state.name!r} is declared twice, with different types",
                hint="use a different name for each state",
            )
        return known

    def _must_be_init(self) -> None:
        if self.cells.declared:
            raise FlowError(
                "state was declared or deleted outside of init()",
                hint="declare all state in init() and keep what it returns",
            )


def _schema(name: str, schema: Any) -> pa.Schema:
    parsed = schema_of(schema)
    if not name or "." in name or name.startswith("__"):
        raise FlowError(
            f"{name!r} is not a valid name for a state",
            hint='use a name without dots that does not begin with "__"',
        )
    wrong = next((field for field in parsed.names if field.startswith("__")), None)
    if wrong is not None or not len(parsed):
        raise FlowError(
            f"the state {name!r} has no fields"
            if wrong is None
            else f"the state {name!r} cannot have a field {wrong!r}",
            hint='give it at least one field, whose name does not begin with "__"',
        )
    return parsed


def _ttl(ttl: int | str | None) -> int | None:
    if ttl is None:
        return None
    length = milliseconds(ttl) if isinstance(ttl, str) else ttl
    if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
        raise FlowError(
            f"ttl is {ttl!r}",
            hint='use a positive number of milliseconds, or text such as "10s"',
        )
    return length
