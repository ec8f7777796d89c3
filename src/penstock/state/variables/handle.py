"""Keyed state as user code sees it: value, list and map state, timers, and the handle to them all.

A step's whole state is one `ColumnTable`: a value's fields are columns of it, a list or a map is
one column, and each variable has a column of bits that says where it holds something. Variables are
used inside calls for a key; the operator that makes the calls (see `variable`) decides when what they
changed reaches the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import milliseconds
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
    """Given to a processor's `init`, which declares its state here and keeps the handle for timers.

    Schemas are DDL text such as "count long, name string", Arrow schemas or Spark struct types.
    `ttl` is in milliseconds, or text such as "10s": that long after its last update a value is gone.

    State is declared in `init` and only there, since it makes the columns of the step's table.
    All else is for calls: timers and state are then those of the call's key.
    """

    def __init__(self, codec: KeyCodec, timers: bool) -> None:
        self.cells = Cells(codec)
        self.timers = TimerQueue(self.cells) if timers else None
        self._states: dict[str, StateVariable] = {}

    def get_value_state(self, name: str, schema: Any, ttl: int | str | None = None) -> ValueState:
        """Declare one row per key, or return it if it is declared already."""
        state = ValueState(name, self.cells, _schema(name, schema), _ttl(ttl))
        return self._declare(state)

    def get_list_state(self, name: str, schema: Any, ttl: int | str | None = None) -> ListState:
        """Declare a list of rows per key; with a `ttl` each of its elements lives so long."""
        state = ListState(name, self.cells, _schema(name, schema), _ttl(ttl))
        return self._declare(state)

    def get_map_state(
        self, name: str, key_schema: Any, value_schema: Any, ttl: int | str | None = None
    ) -> MapState:
        """Declare a map of rows to rows per key; with a `ttl` each of its pairs lives so long."""
        key, value = _schema(name, key_schema), _schema(name, value_schema)
        return self._declare(MapState(name, self.cells, key, value, _ttl(ttl)))

    def delete_if_exists(self, name: str) -> None:
        """Take back a declaration: what was stored under the name is not part of the state."""
        self._must_be_init()
        self._states.pop(name, None)

    def register_timer(self, expiry_ms: int, time: TimeKind = "processing") -> None:
        """Have `handle_expired_timer` called for this key when the time has come.

        "processing" goes by the epochs' time of day, "event" by the watermark. Timers fire when an
        epoch opens, before its rows come. One that is due already fires when the next epoch opens.
        The same time registered twice is one timer.
        """
        self._queue.register(expiry_ms, time)

    def register_timers(
        self, batch: pa.RecordBatch, expiry_ms: pa.Array, time: TimeKind = "processing"
    ) -> None:
        """In `handle_batch`: a timer for the key of each row; no timer where the expiry is null."""
        keys = self.cells.keys_of(batch)
        groups, first = distinct(self.cells.codec, keys)
        chosen = keys.take(first)
        expiries = expiry_ms.to_pylist()
        if len(expiries) != len(groups):
            raise TypeError(f"{len(expiries)} expiries were given for {len(groups)} rows")
        with self.cells.work(chosen, self.cells.table.find(chosen)):
            for group, expiry in zip(groups.tolist(), expiries, strict=True):
                if expiry is not None:
                    self.cells.begin(group)
                    self._queue.register(expiry, time)

    def delete_timer(self, expiry_ms: int, time: TimeKind = "processing") -> None:
        """Forget this timer of the key, if there is one."""
        self._queue.delete(expiry_ms, time)

    def list_timers(self, time: TimeKind = "processing") -> Iterator[int]:
        """When the key's timers of a kind expire, the earliest first."""
        return self._queue.expiries(time)

    @contextmanager
    def for_key(self, key: Any) -> Iterator[None]:
        """In `handle_batch`: state and timers inside are those of one key of the batch.

        What is changed inside is seen by `get_many` afterwards. An exception inside takes it back.
        """
        keys = self.cells.key(key if isinstance(key, (tuple, list)) else (key,))
        with self.cells.work(keys, self.cells.table.find(keys)):
            self.cells.begin(0)
            yield

    def make_table(self, slots: int) -> ColumnTable:
        """The table with the declared columns; the operator makes it once `init` has run."""
        self.cells.variables = list(self._states.values())
        if self.timers is not None:
            self.cells.variables.append(self.timers)
        return self.cells.make_table(slots)

    def state(self, name: str) -> StateVariable:
        """A declared variable by its name, for tools."""
        if name not in self._states:
            known = ", ".join(self._states) or "none"
            raise FlowError(f"there is no state {name!r}", hint=f"declared are: {known}")
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
                f"the state {state.name!r} is declared twice in different ways",
                hint="give each state a name of its own",
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
            f"{name!r} cannot name a state", hint='use a word without dots and leading "__"'
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
            f"ttl={ttl!r} is not a time to live", hint='write milliseconds, or text such as "10s"'
        )
    return length
