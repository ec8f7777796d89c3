"""Tester for processors: runs user logic without Spark, epoch by epoch.

>>> from penstock import KeyedProcessor
>>> class Silence(KeyedProcessor):
...     '''Reports users that were not seen for ten seconds.'''
...
...     output_schema = "user string, seen long"
...
...     def init(self, handle):
...         self.handle = handle
...         self.seen = handle.get_value_state("seen", "n long")
...
...     def handle_input_rows(self, key, rows, timers):
...         (n,) = self.seen.get() or (0,)
...         self.seen.update((n + len(list(rows)),))
...         for old in self.handle.list_timers():
...             self.handle.delete_timer(old)
...         self.handle.register_timer(timers.processing_time_ms + 10_000)
...
...     def handle_expired_timer(self, key, timers, expired):
...         yield (key[0], self.seen.get().n)
...         self.seen.clear()
>>> tester = ProcessorTester(Silence(), "user string, page string", key="user")
>>> tester.feed([("ann", "/"), {"user": "bob", "page": "/"}, ("ann", "/buy")])
[]
>>> tester.peek("seen", "ann"), tester.timers("ann")
(Row(n=2), [10000])
>>> tester.set_time(10_000)
[Row(user='ann', seen=2), Row(user='bob', seen=1)]
>>> tester.peek("seen", "ann") is None
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.model import DeadLetter
from penstock.operators.operator import ROWS, EpochTime
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessOperator, ProcessPlan
from penstock.state.variables.collection_state import ListState, MapState
from penstock.state.variables.ddl import schema_of
from penstock.state.variables.timers import TimeKind
from penstock.state.variables.value_state import ValueState
from penstock.state.variables.values import Row, RowForm


class ProcessorTester:
    """Runs a `KeyedProcessor` like a host: epoch by epoch, with state, timers, TTL and rollback.

    Time only changes when a test sets it. Each `feed` is one epoch with one channel, which is sealed at its
    end. If it raises an error, no state has changed. `key` names the key columns; it is [] for a global step.
    Schemas are DDL text or Arrow schemas. Keys are tuples, or single values if there is one key column.
    """

    def __init__(
        self,
        processor: KeyedProcessor,
        input_schema: Any,
        key: str | Sequence[str],
        *,
        output_schema: Any = None,
        on_error: Literal["fail", "dead_letter"] = "fail",
        slots: int = 4,
        now_ms: int = 0,
        watermark_ms: int | None = None,
    ) -> None:
        names = [key] if isinstance(key, str) else list(key)
        self._plan = ProcessPlan(schema_of(input_schema), names, processor, output_schema)
        self._slots, self._on_error = slots, on_error
        self._input, self._output = RowForm(self._plan.inputs[0]), RowForm(self._plan.output)
        self._epoch = 0
        self._operator = self._fresh()
        self.now_ms = now_ms
        self.watermark_ms = watermark_ms
        self.dead_letters: list[DeadLetter] = []

    def feed(self, rows: Iterable[Any], parts: int = 0) -> list[Row]:
        """Run an epoch with these rows (tuples, dicts or Rows), and return its output.

        With `parts`, the rows of a processor with `merge` are dealt to so many couriers. Each makes partial
        states, which are merged. The output must be the same.
        """
        batch = self._input.batch([self._input.write(row) for row in rows])
        return self._run([batch], parts=parts)

    def set_time(self, now_ms: int) -> list[Row]:
        """Set the time of day, and return the output of processing-time timers that are due."""
        self.now_ms = now_ms
        return self._run([])

    def set_watermark(self, watermark_ms: int) -> list[Row]:
        """Set the watermark, and return the output of event-time timers that are due."""
        self.watermark_ms = watermark_ms
        return self._run([])

    def finish(self) -> list[Row]:
        """End the input, and return the output of all remaining event-time timers."""
        return self._run([], final=True)

    def peek(self, name: str, key: Any) -> Row | list[Row] | dict[Row, Row] | None:
        """Read the state of a key: a row or None, a list of rows, or a dict."""
        with self._operator.inspect(_key(key)) as handle:
            state = handle.state(name)
            if isinstance(state, ListState):
                return list(state.get())
            if isinstance(state, MapState):
                return dict(state.iterator())
            assert isinstance(state, ValueState)
            return state.get()

    def put(self, name: str, key: Any, value: Any) -> None:
        """Set the state of a key: a row, a list of rows, or a dict."""
        with self._operator.inspect(_key(key)) as handle:
            state = handle.state(name)
            state.clear()
            if isinstance(state, ListState):
                state.put(value)
            elif isinstance(state, MapState):
                for map_key, row in value.items():
                    state.update_value(map_key, row)
            else:
                assert isinstance(state, ValueState)
                state.update(value)
        self._operator.table.seal()

    def timers(self, key: Any, time: TimeKind = "processing") -> list[int]:
        """Expiry times of a key's timers in milliseconds, earliest first."""
        with self._operator.inspect(_key(key)) as handle:
            return list(handle.list_timers(time))

    def restart(self) -> None:
        """Continue with a new copy of the processor, and only the state that a checkpoint would hold."""
        table = self._operator.table
        saved = table.export(table.entries_in(np.arange(self._slots)))
        self._operator.shutdown()
        self._operator = self._fresh()
        self._operator.table.load(saved)

    @property
    def keys_held(self) -> int:
        """Number of keys that have state or timers."""
        return len(self._operator.table)

    def _run(self, batches: list[pa.RecordBatch], final: bool = False, parts: int = 0) -> list[Row]:
        operator = self._operator
        time = EpochTime(self._epoch, self.now_ms, self.watermark_ms, final)
        channels = [(ROWS, batches)]
        if parts:
            channels = [self._sent(batches, part, parts, time) for part in range(parts)]
        try:
            answers = [operator.open(time)]
            answers += [operator.apply(*channel) for channel in channels]
            answers.append(operator.close())
        except BaseException:
            operator.rollback()
            raise
        operator.table.seal()
        self._epoch += 1
        for answer in answers:
            self.dead_letters += answer.dead
        output = [batch for answer in answers for batch in answer.batches]
        return [row for b in output for row in self._output.rows(b.columns, b.num_rows)]

    def _sent(
        self, batches: list[pa.RecordBatch], part: int, parts: int, time: EpochTime
    ) -> tuple[str, list[pa.RecordBatch]]:
        """What one of several couriers sends of these rows when their keys are hot."""
        sender = self._plan.sender(time, two_stage=True)
        some = [
            batch.take(pa.array(range(part, batch.num_rows, parts), pa.int64()))
            for batch in batches
        ]
        sent = [out.batch for batch in some for out in sender.add(0, batch)]
        kind, rest = sender.finish()
        return kind, sent + [out.batch for out in rest]

    def _fresh(self) -> ProcessOperator:
        return self._plan.operator(self._slots, "process", self._on_error)


def _key(key: Any) -> tuple[Any, ...]:
    return tuple(key) if isinstance(key, (tuple, list)) else (key,)
