"""What a user writes after `key_by` and `window`: the steps with state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
    """A flow that knows its next step's key, and waits to be told what that step is."""

    flow: Flow
    keys: tuple[str, ...]
    slots: int
    nulls: bool = False

    def aggregate(self, *, emit: Emit = "update", **aggregates: Aggregate) -> Flow:
        """Keep aggregates per key, and emit the rows that changed: once per key and epoch.

        With `emit="changes"` each epoch gives what it takes back and what it puts in, in a column
        `_change`: -1 or 1.
        """
        _some(aggregates)
        if emit == "close":
            raise FlowError(
                "an aggregate without a window never closes",
                hint='use emit="update" or "changes", or key_by(...).window(...)',
            )
        return self._step("aggregate", AggregatePlan, aggregates, emit=emit)

    def process(
        self,
        processor: KeyedProcessor,
        *,
        output_schema: pa.Schema | StructType | str | None = None,
    ) -> Flow:
        """Run a `KeyedProcessor`: any logic of one's own, with state and timers per key."""
        must_be(processor, KeyedProcessor, "process", "a KeyedProcessor", "Counting()")
        schema = output_schema if output_schema is not None else processor.output_schema
        if schema is None:
            raise FlowError(
                f"{type(processor).__name__} does not say what it returns",
                hint='give process(..., output_schema="word string, n long")',
            )
        return self._step("process", ProcessPlan, processor, self.flow.declared(schema))

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        ties: bool = False,
        rank: str | None = None,
        until: str | None = None,
        emit: Emit | None = None,
    ) -> Flow:
        """Keep the first `n` rows of each key in the order of `by`, for example "price desc, at".

        What `by` leaves open is decided by the other columns, so that the answer does not depend on
        the order of arrival. With `ties`, rows that are equal to the n-th in `by` are kept too.
        `rank` names a column for the place of a row. Each epoch gives what changed, in a column
        `_change`; with `until`, a column with the time at which a key is over, its rows are given
        once, when the watermark has passed that time.
        """
        return self._step("top", TopPlan, n, by, ties=ties, rank=rank, until=until, emit=emit)

    def keep(self, which: Literal["first", "last"], by: str) -> Flow:
        """Keep each key's row with the smallest or the largest `by`: deduplication.

        Gives changes, as `top` does: a row that is replaced is taken back.
        """
        if which not in ("first", "last"):
            raise FlowError(f"keep({which!r}) is unknown", hint='write "first" or "last"')
        return self.top(1, by if which == "first" else f"{by} desc")

    def distinct(self, ttl: str | float | None = None) -> Flow:
        """Let the first row of each key pass, and no other, at once.

        With a `ttl`, a key is forgotten that long after its row came, by the time of day.
        """
        ttl_ms = None if ttl is None else milliseconds(ttl)
        return self._step("distinct", DistinctPlan, ttl_ms=ttl_ms)

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        lateness: str | float = 0,
        emit: Emit = "close",
    ) -> WindowedFlow:
        """Cut each key's rows into windows. See `penstock.tumbling`, `hopping` and `session`.

        `on` names the column of times; by default it is the flow's event time. Rows of windows that
        closed longer than `lateness` ago are late: they are counted, and go to `late_rows`. With
        `emit="close"` a window's row is given when the watermark has passed its end (and once more
        for an epoch that changed it within `lateness`), with "update" in each epoch that changed it.
        """
        must_be(window, Window, "window", "a window", 'ps.tumbling("1 minute")')
        time = None
        if window.clock == "event":
            time = self.flow.time_column(on)
        elif on is not None:
            raise FlowError(
                f"a window by processing time has no time column, but on={on!r} was given",
                hint='leave `on` out, or use a window with clock="event"',
            )
        return WindowedFlow(self, window, time, milliseconds(lateness), emit)

    def _step(self, kind: str, plan: Callable[..., StepPlan], *facts: Any, **options: Any) -> Flow:
        """The flow with one more step, whose `plan` is made of the columns here, the key and these."""
        columns, keys = self.flow.schema, list(self.keys)
        made = plan(columns, keys, *facts, nulls=self.nulls, **options)
        return self.flow.with_keyed(kind, self.slots, made)


@dataclass(frozen=True)
class WindowedFlow:
    """A flow that knows its next step's key and windows. Made by `window`."""

    keyed: KeyedFlow
    size: Window
    on: str | None
    lateness_ms: int
    emit: Emit

    def aggregate(self, **aggregates: Aggregate) -> Flow:
        """Keep aggregates per key and window; gives key, window_start, window_end, aggregates."""
        _some(aggregates)
        return self._step("window", WindowPlan, aggregates, emit=self.emit)

    def top(
        self, n: int, by: str | Sequence[str], *, ties: bool = False, rank: str | None = None
    ) -> Flow:
        """Keep the first `n` rows of each key and window, as `KeyedFlow.top` does of each key."""
        return self._step("top", TopPlan, n, by, ties=ties, rank=rank, emit=self.emit)

    def distinct(self) -> Flow:
        """Let the first row of each key and window pass, at once, with its window."""
        return self._step("distinct", DistinctPlan)

    def _step(self, kind: str, plan: Callable[..., StepPlan], *facts: Any, **options: Any) -> Flow:
        windows = {"window": self.size, "on": self.on, "lateness_ms": self.lateness_ms}
        return self.keyed._step(kind, plan, *facts, **windows, **options)


def _some(aggregates: dict[str, Aggregate]) -> None:
    if not aggregates:
        raise FlowError("aggregate needs something to keep", hint="for example n=ps.count()")
    for aggregate in aggregates.values():
        must_be(aggregate, Aggregate, "aggregate", "aggregates", 'ps.sum("v")')


def must_be(value: object, kind: type, step: str, what: str, example: str) -> None:
    """Refuse a value of another kind than a step takes."""
    if not isinstance(value, kind):
        raise FlowError(
            f"{step} takes {what}, and got {type(value).__name__} {value!r:.100}",
            hint=f"write for example {example}",
        )
