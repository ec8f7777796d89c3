"""Flows declared with any arguments: they compile, or an error says what is wrong with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import PenstockError
from penstock.flows.flow import Flow, WindowedFlow
from penstock.flows.graph import Graph, Source
from penstock.flows.keyed_flow import KeyedFlow
from penstock.operators.aggregate.plan import Aggregate
from penstock.plan.steps import SourcePlan
from tests.fuzz.fuzzing import bounded, fuzz, must_be_clear

SCHEMA = pa.schema(
    [
        ("k", pa.int64()), ("name", pa.string()), ("v", pa.int32()), ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")), ("ok", pa.bool_()), ("tags", pa.list_(pa.string())),
        ("_change", pa.int8()), ("window_start", pa.timestamp("s")), ("m", pa.map_(pa.string(), pa.int8())),
    ]
)  # fmt: skip
PLAIN = pa.schema([field for field in SCHEMA if field.name not in ("_change", "window_start")])

columns = st.sampled_from([*SCHEMA.names, "nothing", "", "K", "v desc", "__key", "é"])
garbage = st.sampled_from(
    [None, 0, 1, -1, 2.5, float("nan"), 10**30, True, "", "x", "1s", "-1s", "0s", "1e300s", b"x", [], {},
     ["v"], object(), int, {"a": 1}, ("0s", "1s"), pa.schema([]), pa.int64(), "first",
     "update", "close", "left"]
)  # fmt: skip
durations = (
    st.sampled_from(["1s", "250ms", "0s", "-1s", "x", 2, 0, -1, float("inf"), None]) | garbage
)
aggregates = (
    st.builds(
        Aggregate,
        st.sampled_from(
            [
                "count",
                "sum",
                "min",
                "max",
                "avg",
                "first",
                "last",
                "approx_distinct",
                "count_distinct",
            ]
        ),
        columns | st.none(),
        columns | st.none(),
        st.sampled_from([9, 4, 16, 0, 99, -1]),
        columns | st.none(),
    )
    | garbage
)
windows = (
    st.builds(lambda size: ("tumbling", (size,)), durations)
    | st.builds(lambda size, every: ("hopping", (size, every)), durations, durations)
    | st.builds(lambda gap: ("session_window", (gap,)), durations)
)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


calls: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "key_by": ([columns | garbage], {"slots": st.sampled_from([1, 8, 0, 10**9]) | garbage}),
    "window": (
        [windows | garbage],
        {"on": columns | garbage, "lateness": durations, "emit": garbage, "slots": garbage},
    ),
    "aggregate": ([], {"n": aggregates, "k": aggregates, "emit": garbage}),
    "global_": ([garbage], {"n": aggregates}),
    "top": (
        [st.sampled_from([1, 3, 0, -1, 10**30]) | garbage, columns | garbage],
        {"ties": garbage, "rank": columns | garbage, "until": columns | garbage, "emit": garbage},
    ),
    "keep": ([st.sampled_from(["first", "last"]) | garbage, columns | garbage], {}),
    "distinct": ([], {"ttl": durations}),
    "join": (
        [st.just("OTHER") | garbage, columns | garbage],
        {"how": garbage, "window": windows, "between": garbage, "ttl": durations,
         "left_time": columns, "suffix": garbage, "lateness": durations, "slots": garbage},
    ),
    "map_batches": ([st.just(same) | garbage], {"schema": garbage}),
    "select": ([columns | garbage], {"new": columns | garbage}),
    "process": ([garbage], {"output_schema": garbage}),
    "ordered": ([], {}),
    "on_one_host": ([], {}),
    "sla": ([durations], {"window": durations}),
    "elastic": ([garbage], {"at_least": garbage, "at_most": garbage, "margin": garbage, "alert": durations}),
}  # fmt: skip


def source(schema: pa.Schema, time: str | None = None) -> Flow:
    """A flow on a source that nobody reads."""
    df = cast(Any, SimpleNamespace(sparkSession=None))
    return Flow(Graph((Source(df, SourcePlan(schema, time)),)), time=time)


def made(argument: Any, other: Flow) -> Any:
    if argument == "OTHER":
        return other
    if (
        isinstance(argument, tuple)
        and argument
        and argument[0] in ("tumbling", "hopping", "session_window")
    ):
        return getattr(ps, argument[0])(*argument[1])
    return argument


@fuzz(250)
@given(st.data(), st.sampled_from([SCHEMA, PLAIN]), st.sampled_from(["at", None]))
def test_any_calls(data: st.DataObject, schema: pa.Schema, time: str | None) -> None:
    here: Any = source(schema, time)
    other = source(PLAIN, "at")
    told: list[str] = []
    with bounded():
        for _ in range(data.draw(st.integers(1, 5))):
            names = [name for name in calls if hasattr(here, name)]
            name = data.draw(st.sampled_from(names))
            places, options = calls[name]
            given_places = [data.draw(place) for place in places]
            given_options = {
                option: data.draw(values)
                for option, values in options.items()
                if data.draw(st.integers(0, 3)) == 0
            }
            told.append(f"{name}({given_places}, {given_options})")
            try:
                result = getattr(here, name)(
                    *(made(value, other) for value in given_places),
                    **{option: made(value, other) for option, value in given_options.items()},
                )
            except PenstockError as refused:
                must_be_clear(refused)
                return
            except TypeError as refused:
                if not str(refused):
                    raise
                return
            except Exception as broken:
                broken.add_note(".".join(told))
                raise
            if isinstance(result, Flow | KeyedFlow | WindowedFlow):
                here = result
        if isinstance(here, Flow):
            assert here.plan.output is not None
