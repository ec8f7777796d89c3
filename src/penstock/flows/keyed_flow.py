"""The steps with state, as a user writes them after `key_by` and `window`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import milliseconds
from penstock.operators.aggregate.aggregates import Aggregate, AggregatePlan
from penstock.operators.operator import Emit, StepPlan
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import Window

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.flows.flow import Flow


@dataclass(frozen=True)
class KeyedFlow:
    """A flow with the key of its next step. Made by `key_by`; its methods add that step."""

    flow: Flow
    """The flow that the step is added to."""
    keys: tuple[str, ...]
    """Key columns; none for a step without a key."""
    slots: int
    """Slots of the step's key space."""
    nulls: bool = False
    """Whether null is a key like any other."""

    # A column may be called "name" as well. It stays among the others, whose order is that of the output.
    @overload
    def aggregate(self, *, emit: Emit = ..., name: str, **aggregates: Aggregate) -> Flow: ...
    @overload
    def aggregate(self, *, emit: Emit = ..., **aggregates: Aggregate) -> Flow: ...
    def aggregate(self, *, emit: Emit = "update", **aggregates: Any) -> Flow:
        """Keep aggregates per key, and emit the rows that changed: once per key and epoch.

        Each keyword is an output column and its aggregate: `n=ps.count()`. With `emit="changes"` an epoch
        emits the old row of a changed key with -1 and its new row with 1 in a column `_change`.

        `name="clicks"` names the step. The name is the step's identity in a checkpoint, and what `hosts`,
        `late_rows` and `penstock ctl` call it; by default it is "aggregate-1" or the like, which counts
        keyed steps.
        """
        step = popped_name(aggregates)
        _some(aggregates)
        if emit == "close":
            raise FlowError(
                "an aggregate without a window never closes",
                hint='use emit="update" or "changes", or key_by(...).window(...)',
            )
        return self._step("aggregate", step, AggregatePlan, aggregates, emit=emit)

    def process(
        self,
        processor: KeyedProcessor,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
        name: str | None = None,
    ) -> Flow:
        """Run a `KeyedProcessor`: your own logic, with state and timers per key.

        `output_schema` describes its output rows; by default the processor's own. `name` names the step,
        as in `aggregate`.
        """
        must_be(processor, KeyedProcessor, "process", "a KeyedProcessor", "Counting()")
        schema = output_schema if output_schema is not None else processor.output_schema
        if schema is None:
            raise FlowError(
                f"the output columns of {type(processor).__name__} are not known",
                hint='declare them: process(..., output_schema="word string, n long")',
            )
        return self._step("process", name, ProcessPlan, processor, self.flow.declared(schema))

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        ties: bool = False,
        rank: str | None = None,
        until: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
    ) -> Flow:
        """Keep the first `n` rows of each key in the order of `by`, for example "price desc, at".

        Rows that are equal in `by` are ordered by their other columns, so that the result does not depend
        on the order of arrival. With `ties`, rows that are equal to the n-th in `by` are kept too.
        `rank` names an output column with the position of a row, from 1.

        Each epoch emits the changes, with 1 or -1 in a column `_change`. `until` names a column with the
        time at which a key ends; then the rows of a key are emitted once, when the watermark has passed
        that time. `name` names the step, as in `aggregate`.
        """
        options = {"ties": ties, "rank": rank, "until": until, "emit": emit}
        return self._step("top", name, TopPlan, n, by, **options)

    def keep(self, which: Literal["first", "last"], by: str, *, name: str | None = None) -> Flow:
        """Keep each key's row with the smallest ("first") or the largest ("last") `by`: deduplication.

        Emits changes as `top` does: a row that is replaced is emitted again with -1. `name` names the step,
        as in `aggregate`.
        """
        if which not in ("first", "last"):
            raise FlowError(f"keep cannot keep {which!r}", hint='use "first" or "last"')
        return self.top(1, by if which == "first" else f"{by} desc", name=name)

    def distinct(self, ttl: str | float | None = None, *, name: str | None = None) -> Flow:
        """Emit the first row of each key at once, and drop the others.

        With a `ttl`, such as "1 hour", a key is forgotten that long after its row arrived, by the time of
        day. `name` names the step, as in `aggregate`.
        """
        ttl_ms = None if ttl is None else milliseconds(ttl)
        return self._step("distinct", name, DistinctPlan, ttl_ms=ttl_ms)

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        lateness: str | float = 0,
        emit: Emit = "close",
    ) -> WindowedFlow:
        """Group each key's rows into windows. See `penstock.tumbling`, `hopping` and `session_window`.

        `on` names the timestamp column; by default it is the flow's event time. Rows of a window that
        closed more than `lateness` ago are late: they are counted, and go to the sink `late_rows`. With
        `emit="close"` a window's row is emitted when the watermark has passed its end, and again in each
        epoch that changes it within `lateness`; with "update", in each epoch that changes it.
        """
        must_be(window, Window, "window", "a window", 'ps.tumbling("1 minute")')
        time = None
        if window.clock == "event":
            time = self.flow.time_column(on)
        elif on is not None:
            raise FlowError(
                f"a window by processing time has no time column, but `on` is {on!r}",
                hint='leave `on` out, or use a window with clock="event"',
            )
        return WindowedFlow(self, window, time, milliseconds(lateness), emit)

    def _step(
        self,
        kind: str,
        name: str | None,
        plan: Callable[..., StepPlan],
        *facts: Any,
        **options: Any,
    ) -> Flow:
        """The flow with one more step. Its plan is made of the flow's columns, the key and `facts`."""
        columns, keys = self.flow.schema, list(self.keys)
        made = plan(columns, keys, *facts, nulls=self.nulls, **options)
        return self.flow.with_keyed(kind, self.slots, made, name)


@dataclass(frozen=True)
class WindowedFlow:
    """A flow with the key and the windows of its next step. Made by `window`; its methods add that step."""

    keyed: KeyedFlow
    """The flow, with the key of the step."""
    size: Window
    """The kind and length of the windows."""
    on: str | None
    """The timestamp column; None for windows by processing time."""
    lateness_ms: int
    """Milliseconds for which a closed window still takes rows."""
    emit: Emit
    """When a window's row is emitted: "close" or "update"."""

    @overload
    def aggregate(self, *, name: str, **aggregates: Aggregate) -> Flow: ...
    @overload
    def aggregate(self, **aggregates: Aggregate) -> Flow: ...
    def aggregate(self, **aggregates: Any) -> Flow:
        """Keep aggregates per key and window; emits key, window_start, window_end and aggregates.

        `name="clicks"` names the step, as in `KeyedFlow.aggregate`; by default it is "window-1" or the like.
        """
        step = popped_name(aggregates)
        _some(aggregates)
        return self._step("window", step, WindowPlan, aggregates, emit=self.emit)

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        ties: bool = False,
        rank: str | None = None,
        name: str | None = None,
    ) -> Flow:
        """Keep the first `n` rows of each key and window. See `KeyedFlow.top`."""
        return self._step("top", name, TopPlan, n, by, ties=ties, rank=rank, emit=self.emit)

    def distinct(self, *, name: str | None = None) -> Flow:
        """Emit the first row of each key and window at once, with its window. See `KeyedFlow.distinct`."""
        return self._step("distinct", name, DistinctPlan)

    def _step(
        self,
        kind: str,
        name: str | None,
        plan: Callable[..., StepPlan],
        *facts: Any,
        **options: Any,
    ) -> Flow:
        windows = {"window": self.size, "on": self.on, "lateness_ms": self.lateness_ms}
        return self.keyed._step(kind, name, plan, *facts, **windows, **options)


def popped_name(aggregates: dict[str, Any]) -> str | None:
    """Take the step's name out of the keywords of an aggregate; None if it has none.

    An aggregate under that keyword stays: it is a column called "name".
    """
    if isinstance(aggregates.get("name"), Aggregate):
        return None
    name: str | None = aggregates.pop("name", None)
    return name


def _some(aggregates: dict[str, Aggregate]) -> None:
    if not aggregates:
        raise FlowError("aggregate has no aggregate", hint="add one, for example n=ps.count()")
    for aggregate in aggregates.values():
        must_be(aggregate, Aggregate, "aggregate", "aggregates", 'ps.sum("v")')


def must_be(value: object, kind: type, step: str, what: str, example: str) -> None:
    """Raise if a step's argument is not of this type."""
    if not isinstance(value, kind):
        raise FlowError(
            f"{step} takes {what}, but got {type(value).__name__} {value!r:.100}",
            hint=f"write for example {example}",
        )
