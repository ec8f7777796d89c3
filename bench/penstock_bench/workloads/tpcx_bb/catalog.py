"""The queries by number: their flows, plans without Spark, and final answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

import penstock as ps
from penstock.errors import SettingError
from penstock.flows.graph import Graph, Source
from penstock.plan.steps import FlowPlan, SourcePlan
from penstock_bench.workloads.nexmark.output import final_rows, final_schema
from penstock_bench.workloads.tpcx_bb.config import EVENT_TIME, SCHEMAS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.flows.flow import Flow
    from penstock_bench.workloads.tpcx_bb.config import Stream

Kind = Literal["stateless", "keyed", "global"]

SLOTS = 16
"""Slots of steps whose processor is called once per slot: few, so that each call has many rows."""


@dataclass(frozen=True)
class TpcxBbQuery:
    """A query: the stream that it reads, its steps, and how to read its final answer."""

    stream: Stream
    steps: Callable[[Flow], Flow]
    """Adds the query's steps, one after the other, to a flow of the stream."""
    shape: tuple[Kind, ...]
    """Kinds of the steps, in order."""
    order: tuple[tuple[str, Literal["ascending", "descending"]], ...]
    """Total order of the answer's rows."""
    newest: Callable[[pa.Table], pa.Table] | None = None
    """Selects the final row of a flow that emits it again when it changes; None for other flows."""


TITLES = {
    1: "Pairs of items bought together: the first hundred of each hour.",
    2: "Pairs of items looked at together in a session: the first thirty.",
    3: "What is looked at before an item is bought: the first thirty of each.",
    4: "Pages visited in sessions whose cart is left behind.",
    15: "Categories whose sales stay the same or fall.",
}


def find(number: int) -> TpcxBbQuery:
    """The query of this number."""
    if number not in TITLES:
        raise SettingError(
            f"there is no TPCx-BB query {number}",
            hint=f"the queries are {', '.join(map(str, TITLES))}",
        )
    query = import_module(f"penstock_bench.workloads.tpcx_bb.queries.q{number}").QUERY
    assert isinstance(query, TpcxBbQuery)
    return query


def begin(number: int, rows: DataFrame) -> ps.Flow:
    """A flow on the rows of the stream that a query reads."""
    return ps.flow(rows, event_time=EVENT_TIME[find(number).stream])


def query(number: int, flow: ps.Flow) -> ps.Flow:
    """Add the query's steps to a flow of the stream that it reads."""
    return find(number).steps(flow)


def plan(number: int) -> FlowPlan:
    """The compiled query, without Spark.

    >>> [step.id for step in plan(4).steps]
    ['map-1', 'window-1', 'map-2', 'aggregate-2']
    """
    stream = find(number).stream
    source = SourcePlan(SCHEMAS[stream], EVENT_TIME[stream])
    nowhere = cast("DataFrame", _NoRows())
    whole = query(number, ps.Flow(Graph((Source(nowhere, source),)), time=source.event_time))
    return whole.plan


class _NoRows:
    """A stand-in for a DataFrame that is never read."""

    sparkSession: Any = None  # noqa: N815 - Spark's name


def final(number: int, epochs: Iterable[Iterable[pa.RecordBatch]]) -> pa.Table:
    """The answer to a query: the sorted rows that remain after the output of these epochs, in order."""
    definition, schema = find(number), plan(number).output
    answer = pa.Table.from_batches(final_rows(epochs, schema), final_schema(schema))
    if definition.newest is not None:
        answer = definition.newest(answer)
    return answer.sort_by(list(definition.order))
