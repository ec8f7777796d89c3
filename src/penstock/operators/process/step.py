"""The plan and the operator of a `process` step.

Calls of `handle_input_rows` work on cells (see `state.variables.variable`), which are written to the table in
pieces of a channel, or on records if it is compiled. `handle_batch` works on the table itself, between
savepoints. Either way a failed call is undone. Then the step fails, or, with `on_error="dead_letter"`, the
bad row becomes a dead letter and the call is made again without it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, ProtocolError
from penstock.operators.operator import (
    PARTIALS,
    ROWS,
    Answer,
    EpochTime,
    OnError,
    Sender,
    StepPlan,
)
from penstock.operators.places import Places, taken
from penstock.operators.process.batch_calls import BatchCalls
from penstock.operators.process.calls import Caller, NoRows
from penstock.operators.process.compiled import HANDLERS, is_compiled
from penstock.operators.process.compiled_calls import CompiledKeyCalls, CompiledTimerCalls
from penstock.operators.process.key_calls import KeyCalls
from penstock.operators.process.partials import (
    UNHANDLED,
    MergedCalls,
    Merger,
    PartialSender,
    unhandled_field,
)
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.timer_calls import Limits, TimerCalls
from penstock.operators.table_operator import TableOperator, whole_or_not
from penstock.state.keys.codec import Keys
from penstock.state.table.table import KEY
from penstock.state.variables.collection_cells import NEVER
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.timers import ALL_TIMES, TimerQueue
from penstock.state.variables.values import RowForm

_PURGE_EVERY_MS = 100
"""Milliseconds, at least, between two scans of the table for state whose TTL has ended, in live flows."""


class ProcessPlan(StepPlan):
    """A compiled `process` step, which is sent to hosts with the user's processor in it.

    Without key names the step is global: its only key is (). The output schema is by default the one that the
    processor declares. With `nulls`, null is allowed in the key. Partial states merge if the processor
    defines `merge`.
    """

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        processor: KeyedProcessor,
        output_schema: Any = None,
        nulls: bool = False,
    ) -> None:
        if not isinstance(processor, KeyedProcessor):
            raise FlowError(
                f"{type(processor).__name__} is not a KeyedProcessor",
                hint="derive it from penstock.KeyedProcessor, and pass an object, not the class",
            )
        name = type(processor).__name__
        by_key = _defines(processor, "handle_input_rows")
        self.by_batch = hasattr(processor, "handle_batch")
        """Whether the processor defines `handle_batch` and not `handle_input_rows`."""
        if by_key == self.by_batch:
            raise FlowError(
                f"{name} defines {'both' if by_key else 'neither'} of handle_input_rows "
                "and handle_batch",
                hint="define one of them",
            )
        schema = processor.output_schema if output_schema is None else output_schema
        if schema is None:
            raise FlowError(
                f"{name} has no output schema",
                hint='set output_schema = "word string, n long" in the class',
            )
        self._read(input_schema, key_names, nulls)
        self.output, self.processor = schema_of(schema), processor
        self.has_timers = _defines(processor, "handle_expired_timer")
        self.merges = _defines(processor, "merge")
        self.emits_merged = _defines(processor, "handle_merged")
        if self.merges and not (self.emits_merged or self.has_timers):
            raise FlowError(
                f"{name} has merge, but neither handle_merged nor handle_expired_timer to emit rows",
                hint="define handle_merged(key, timers), and emit no rows elsewhere; or rename merge",
            )
        if self.emits_merged and not self.merges:
            raise FlowError(
                f"{name} has handle_merged, but not merge", hint="define merge(other) as well"
            )
        self._kept = threading.local()
        if any(is_compiled(processor, name) for name in HANDLERS):
            # what cannot be compiled is found here, and not on a host
            self.operator(1, name, "fail")

    def calls(self, caller: Caller, input: pa.Schema) -> KeyCalls | BatchCalls:
        """The calls of the processor's handler of rows."""
        if self.by_batch:
            return BatchCalls(caller)
        if is_compiled(self.processor, "handle_input_rows"):
            return CompiledKeyCalls(caller, input)
        return KeyCalls(caller, input)

    def timer_calls(self, caller: Caller, queue: TimerQueue) -> TimerCalls:
        """The calls of the processor's handler of timers."""
        if is_compiled(self.processor, "handle_expired_timer"):
            return CompiledTimerCalls(caller, queue)
        return TimerCalls(caller, queue)

    @property
    def code(self) -> tuple[Any, ...]:
        return (self.processor,) if self.merges else ()

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Create a sender of rows. With `two_stage` it calls the processor, if that merges: elsewhere a
        courier would only do the work of hosts, at the same cost."""
        if not (two_stage and self.merges):
            return super().sender(time)
        return PartialSender(self.codec, self._partial_operator, time)

    def _partial_operator(self) -> ProcessOperator:
        """This thread's operator for partial states. It is kept, since `init` of user code may be slow."""
        operator: ProcessOperator | None = getattr(self._kept, "operator", None)
        if operator is None:
            operator = self._kept.operator = ProcessOperator(self, 1, "partial")
        return operator

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of rows or of partial states."""
        if UNHANDLED in batch.schema.names:
            return self.codec.from_storage(batch.column(KEY))
        return super().sent_keys(batch)

    def __str__(self) -> str:
        return type(self.processor).__name__

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> ProcessOperator:
        kind = MergingOperator if self.merges else ProcessOperator
        return kind(self, slots, step_id, on_error, ordered)


class ProcessOperator(TableOperator):
    """One `process` step on one host; see `operators.operator.Operator` for the protocol.

    All state between calls is in the table, timers included. A call gets all rows of a channel for its
    key, or for whole slots with `handle_batch`. Therefore a channel cannot be divided.
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
        sets_aside = on_error == "dead_letter"
        caller = self._caller = _called(plan, step_id, sets_aside)
        self.processor, self.handle = caller.processor, caller.handle
        super().__init__(plan, self.handle.make_table(slots), step_id, ordered)
        (self._input,) = plan.inputs
        self._timers: Timers | None = None
        self._purge_at_ms = 0
        self._calls: KeyCalls | BatchCalls
        handler = caller
        if plan.merges:
            handler = replace(caller, output=NoRows(plan.output, plan.processor))
        self._calls = plan.calls(handler, self._input)
        self.by_key = not plan.by_batch
        queue = self.handle.timers
        self._timer_calls = None if queue is None else plan.timer_calls(caller, queue)

    def renew(self) -> None:
        """Forget all state."""
        self.table = self.handle.make_table(self.table.slots)

    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with a timer that is due. Expired TTLs are not listed: no call sees such state anyway."""
        queue = self.handle.timers
        return {} if queue is None else queue.due_columns(_limits(time)[0])

    def begin(self, time: EpochTime) -> None:
        """Begin a round at this time. From time to time, state whose TTL has ended is removed, which
        scans the table; no call sees such state in any case."""
        super().begin(time)
        self.handle.cells.now_ms = time.now_ms
        self._timers = Timers(time.now_ms, time.watermark_ms)
        for variable in self.handle.cells.variables:
            variable.tidy()
        if time.now_ms >= self._purge_at_ms:
            with whole_or_not(self.table):
                self._purge()

    def fire(self) -> Answer:
        """Fire the timers that are due."""
        if self._timer_calls is None:
            return Answer()
        assert self._timers is not None
        due, limits = _limits(self._time)
        with whole_or_not(self.table):
            calls = self._timer_calls.expired(due, limits, self._timers, self.ordered)
            return calls.answer()

    def open(self, time: EpochTime) -> Answer:
        """Remove all state whose TTL has ended, then fire the timers that are due."""
        self._purge_at_ms = time.now_ms
        with whole_or_not(self.table):
            return super().open(time)

    def _applied(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Answer:
        """Make the calls for all rows of a channel."""
        if self._timers is None:
            raise ProtocolError(f"step {self.step_id} got rows before its epoch was opened")
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return Answer()
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        if batch.schema.names != self._input.names:
            batch = batch.select(self._input.names)
        some = [where for where in places if where is not None]
        return self._calls.rows(batch, self._timers, Places.joined(some) if some else None).answer()

    def rollback(self) -> None:
        """Return to the newest durable version. There is no state beside the table."""
        super().rollback()
        self._timers, self._purge_at_ms = None, 0

    def shutdown(self) -> None:
        """Close the processor. Called when the host stops normally."""
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
        ends = [variable.next_end_ms() for variable in cells.variables]
        self._purge_at_ms = max(min(ends, default=NEVER), cells.now_ms + _PURGE_EVERY_MS)


class MergingOperator(ProcessOperator):
    """A `process` step whose processor merges partial states. It emits when a round closes."""

    kinds = (PARTIALS, ROWS)

    def __init__(
        self,
        plan: ProcessPlan,
        slots: int,
        step_id: str,
        on_error: OnError = "fail",
        ordered: bool = False,
    ) -> None:
        super().__init__(plan, slots, step_id, on_error, ordered)
        other = _called(plan, step_id, False)
        self._merger = Merger(self._caller, other.processor, other.handle, self._input)
        self._merged = MergedCalls(self._caller) if plan.emits_merged else None
        self.wire = {PARTIALS: self.table.schema.append(unhandled_field(self._input))}

    def close(self) -> Answer:
        """Emit the rows of keys whose state the round has changed."""
        if self._merged is None or self._timers is None:
            return Answer()
        touched = self.table.touched()
        touched = touched[self.table.present(touched)]
        with whole_or_not(self.table):
            return self._merged.rows(touched, self._timers, self._first(touched)).answer()

    def _applied(
        self, kind: str, batches: list[pa.RecordBatch], places: Sequence[Places | None]
    ) -> Answer:
        rows = batches
        if kind == PARTIALS:
            rows = [left for batch in batches if (left := self._merger.merge(batch)) is not None]
        answer = super()._applied(ROWS, rows, [None] * len(rows))
        if self.ordered:
            for keys, where in zip(self.keys(kind, batches), places, strict=True):
                entries = self.table.find(keys)
                known = np.flatnonzero(entries >= 0)
                self._note(keys.take(known), entries[known], taken(where, known))
        return answer


def _called(plan: ProcessPlan, step_id: str, sets_aside: bool) -> Caller:
    """A copy of the plan's processor, with its state declared. Neither `init` nor a call of one copy may
    affect another."""
    handle = StateHandle(plan.codec, plan.has_timers, plan.by_batch)
    processor = copy.deepcopy(plan.processor)
    caller = Caller(step_id, processor, handle, RowForm(plan.output), sets_aside)
    try:
        processor.init(handle)
    except Exception as error:
        raise caller.failure(processor.init, "", "", None, error) from error
    return caller


def _limits(time: EpochTime) -> tuple[Limits, Limits]:
    """Times up to which existing timers are due, and up to which timers registered by handlers are."""
    limits: Limits = {"processing": time.now_ms, "event": time.watermark_ms}
    return ({**limits, "event": ALL_TIMES} if time.final else limits), limits


def _defines(processor: KeyedProcessor, method: str) -> bool:
    return getattr(type(processor), method) is not getattr(KeyedProcessor, method)
