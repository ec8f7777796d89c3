"""A `process` step on a host: a user's processor, called whole or not at all.

Per key, calls work on cells (see `state.variables.variable`) that reach the table when a whole channel
has been served; `handle_batch` works on the table itself, between savepoints. Either way a failing call is
undone. Then the step fails, or, with `on_error="dead_letter"`, the row to blame is set aside and
the call is made again without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, ProtocolError
from penstock.operators.operator import (
    ROWS,
    Answer,
    EpochTime,
    OnError,
    RowSender,
    Unfit,
    without_key,
)
from penstock.operators.places import Places
from penstock.operators.process.batch_calls import BatchCalls
from penstock.operators.process.calls import Caller, Evidence
from penstock.operators.process.key_calls import KeyCalls
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.timer_calls import Limits, TimerCalls
from penstock.operators.table_operator import places_of, whole_or_not
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.table import ColumnTable
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.timers import ALL_TIMES
from penstock.state.variables.values import RowForm


@dataclass(frozen=True)
class ProcessPlan:
    """A compiled `process` step: shipped to hosts with the user's processor in it."""

    input_schema: pa.Schema
    key_names: list[str]
    """No names: a global step, whose one key is ()."""
    processor: KeyedProcessor
    output_schema: Any = None
    """What the processor gives; by default what it says itself."""
    nulls: bool = False
    """Whether a null in the key is a key like any other."""

    def __post_init__(self) -> None:
        if not isinstance(self.processor, KeyedProcessor):
            raise FlowError(
                f"{type(self.processor).__name__} is not a KeyedProcessor",
                hint="derive it from penstock.KeyedProcessor and give an object, not the class",
            )
        name = type(self.processor).__name__
        by_key = _defines(self.processor, "handle_input_rows")
        if by_key == self.by_batch:
            raise FlowError(
                f"{name} defines {'both' if by_key else 'neither'} of handle_input_rows "
                "and handle_batch",
                hint="define one of them",
            )
        schema = self.output_schema
        schema = self.processor.output_schema if schema is None else schema
        if schema is None:
            raise FlowError(
                f"{name} does not say what it gives",
                hint='set output_schema = "word string, n long" in the class',
            )
        object.__setattr__(self, "output_schema", schema_of(schema))
        missing = [key for key in self.key_names if key not in self.input_schema.names]
        if missing:
            raise FlowError(
                f"there is no column {missing[0]!r} to key by",
                hint=f"the columns here are {', '.join(self.input_schema.names)}",
            )

    def __str__(self) -> str:
        return type(self.processor).__name__

    @property
    def output(self) -> pa.Schema:
        schema: pa.Schema = self.output_schema
        return schema

    @cached_property
    def codec(self) -> KeyCodec:
        keys = pa.schema([self.input_schema.field(name) for name in self.key_names])
        return KeyCodec(keys, self.nulls)

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return (self.input_schema,)

    @property
    def merges(self) -> bool:
        """Nobody can tell how to merge what user code has kept."""
        return False

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows without a key."""
        return without_key(self.codec, self.key_names, batch)

    def sender(self, time: EpochTime, two_stage: bool = False) -> RowSender:
        """All rows go to the processor."""
        return RowSender(self.codec)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of the rows as they came."""
        return self.codec.encode(batch)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> ProcessOperator:
        """The host's part."""
        return ProcessOperator(self, slots, step_id, on_error, ordered)

    @property
    def by_batch(self) -> bool:
        """Whether the processor takes batches (`handle_batch`) and not the rows of one key."""
        return hasattr(self.processor, "handle_batch")

    @property
    def has_timers(self) -> bool:
        """Whether the processor can use timers: it says what to do when one expires."""
        return _defines(self.processor, "handle_expired_timer")


class ProcessOperator:
    """One `process` step on one host; see `operators.operator.Operator` for the protocol.

    All that lasts from call to call is in the table, timers included, and the epoch's time. A call
    for a key gets all its rows of a channel, and one of `handle_batch` all of a slot: the channel
    cannot be divided. Rows that a call gives belong where the row does that it had read last.
    """

    divisible = False

    def __init__(
        self,
        plan: ProcessPlan,
        slots: int,
        step_id: str,
        on_error: OnError = "fail",
        ordered: bool = False,
    ) -> None:
        self.output, self.ordered = plan.output, ordered
        self.handle = StateHandle(plan.codec, plan.has_timers)
        # a copy, also of all that it holds: neither `init` nor a call of one part may reach another
        self.processor = copy.deepcopy(plan.processor)
        evidence, sets_aside = Evidence(step_id), on_error == "dead_letter"
        try:
            self.processor.init(self.handle)
        except Exception as error:
            raise evidence.failure(self.processor.init, "", "", None, error) from error
        self.table: ColumnTable = self.handle.make_table(slots)
        self._step, self._input, self._codec = step_id, plan.input_schema, plan.codec
        self._timers: Timers | None = None
        caller = Caller(self.processor, self.handle, RowForm(self.output), evidence, sets_aside)
        self._calls: KeyCalls | BatchCalls
        self._calls = BatchCalls(caller) if plan.by_batch else KeyCalls(caller, plan.input_schema)
        queue = self.handle.timers
        self._timer_calls = None if queue is None else TimerCalls(caller, queue)

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of these rows."""
        return [self._codec.encode(batch) for batch in batches if batch.num_rows]

    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with a timer that is due. What has outlived its TTL need not be here to be gone."""
        queue = self.handle.timers
        return {} if queue is None else queue.due_columns(_limits(time)[0])

    def open(self, time: EpochTime) -> Answer:
        """Take out what has outlived its TTL, then fire the timers that are due."""
        self.handle.cells.now_ms = time.now_ms
        self._timers = timers = Timers(time.now_ms, time.watermark_ms)
        due, limits = _limits(time)
        with whole_or_not(self.table):
            self._purge()
            if self._timer_calls is None:
                return Answer()
            return self._timer_calls.expired(due, limits, timers, self.ordered).answer()

    def apply(
        self, kind: str, batches: list[pa.RecordBatch], places: Places | None = None
    ) -> Answer:
        """Take in the rows of one channel."""
        if kind != ROWS:
            raise ProtocolError(f"step {self._step} takes rows, not {kind}")
        if self._timers is None:
            raise ProtocolError(f"step {self._step} got rows before its epoch was opened")
        each = places_of(self.ordered, batches, places)
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return Answer()
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        if batch.schema.names != self._input.names:
            batch = batch.select(self._input.names)
        where = Places.joined([some for some in each if some is not None]) if self.ordered else None
        with whole_or_not(self.table):
            return self._calls.rows(batch, self._timers, where).answer()

    def close(self) -> Answer:
        """Nothing: a processor gives its rows when it is called."""
        return Answer()

    def rollback(self) -> None:
        """Return to the last sealed version. There is nothing beside the table to bring back."""
        self.table.rollback()
        self._timers = None

    def shutdown(self) -> None:
        """The host ends in good order: let the processor close."""
        self.processor.close()

    @contextmanager
    def inspect(self, key: tuple[Any, ...]) -> Iterator[StateHandle]:
        """State and timers of one key, for tools and tests; changes made inside are kept."""
        cells = self.handle.cells
        keys = cells.codec.from_values(key)
        with whole_or_not(self.table), cells.work(keys, self.table.find(keys)):
            cells.begin(0)
            yield self.handle

    def _purge(self) -> None:
        cells = self.handle.cells
        changed = [variable.purge() for variable in cells.variables]
        if changed:
            cells.drop_bare(np.unique(np.concatenate(changed)))


def _limits(time: EpochTime) -> tuple[Limits, Limits]:
    """Times up to which timers are due, and up to which those that a handler registers meanwhile are."""
    limits: Limits = {"processing": time.now_ms, "event": time.watermark_ms}
    return ({**limits, "event": ALL_TIMES} if time.final else limits), limits


def _defines(processor: KeyedProcessor, method: str) -> bool:
    return getattr(type(processor), method) is not getattr(KeyedProcessor, method)
