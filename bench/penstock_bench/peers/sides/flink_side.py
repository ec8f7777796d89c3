"""The peers' tasks on PyFlink, with parallelism 2 and a checkpoint each second, in one JVM.

Words: "sql" for SQL, "batched" for SQL with mini-batches, "table" for an aggregate function in Python, and
"datastream" for the DataStream API in Python. Flink makes the row numbers itself, in Java.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock_bench.peers.stream import (
    FULL,
    REPORT_EVERY,
    SECOND_US,
    SMALL,
    SMALL_ROWS,
    WINDOW_S,
    Stream,
    fold,
)
from penstock_bench.peers.timing import rate, tell

_FIRST = {"sql": 2_000_000, "batched": 2_000_000, "table": 50_000, "datastream": 50_000}
_STEP = {"sql": 200_000, "batched": 200_000, "table": 10_000, "datastream": 10_000}
_BATCHED = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1s",
    "table.exec.mini-batch.size": "500000",
}
_PYTHON = {"python.state.cache-size": "200000"}
"""Keys whose state Python keeps. With the default, 1,000, nearly every row would ask the JVM for its own."""
_COLUMNS = {
    "pass_through": "k BIGINT, v BIGINT",
    "sum": "k BIGINT, s BIGINT",
    "windowed": "k BIGINT, w BIGINT, n BIGINT",
    "python_fn": "k BIGINT, n BIGINT, c BIGINT, seen BIGINT",
}


def main(task: str, how: str, seconds: str, folder: str, api: str) -> None:
    """Time the task, or write its answer."""
    facts: dict[str, Any] = {}
    if how != "time":
        _run(task, api, SMALL, SMALL_ROWS, folder, Path(folder, "answer"))
    if how != "answer":

        def run(rows: int) -> float:
            return _run(task, api, FULL, rows, folder, None)

        # Python asks the JVM once for the state of each key, so that rows of new keys are not what lasts.
        least = FULL.keys if api in ("table", "datastream") and task != "pass_through" else 0
        facts = rate(run, float(seconds), _FIRST[api], _STEP[api], least)
    tell(facts)


def _run(task: str, api: str, stream: Stream, rows: int, folder: str, answer: Path | None) -> float:
    """Process a number of rows; the seconds that the job took."""
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    env = StreamExecutionEnvironment.get_execution_environment(_settings(api, folder))
    tables = StreamTableEnvironment.create(env)
    _rows(env, tables, stream, rows)
    out = {
        "sql": _sql,
        "batched": _sql,
        "table": _aggregate_function,
        "datastream": _datastream,
    }[api](tables, task)
    began = time.monotonic()
    if answer is not None:
        _write(env, tables, out, answer)
    else:
        # Flink does not know that rows of an aggregate in Python are one for each key.
        key = ", PRIMARY KEY (k) NOT ENFORCED" if task == "sum" and api != "table" else ""
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE dropped ({_COLUMNS[task]}{key}) WITH ('connector' = 'blackhole')"
        )
        out.execute_insert("dropped").wait()
    return time.monotonic() - began


def _settings(api: str, folder: str) -> Any:
    from pyflink.common import Configuration

    conf = Configuration()
    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.dir": Path(folder, "checkpoints").resolve().as_uri(),
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        **_PYTHON,
        **(_BATCHED if api == "batched" else {}),
    }
    for name, value in settings.items():
        conf.set_string(name, value)
    return conf


def _rows(env: Any, tables: Any, stream: Stream, rows: int) -> None:
    """The view `numbered` of (k, v, ts). The source's two halves are interleaved, so that both readers are
    at the same event time."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import (
        NumberSequenceSource,
    )
    from pyflink.table import Schema

    source = NumberSequenceSource(0, rows - 1)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    sql = stream.sql(f"(f0 * 2 % {rows} + f0 / {rows // 2})", "/")
    schema = (
        Schema.new_builder()
        .column("f0", "BIGINT")
        .column_by_expression("k", sql["k"])
        .column_by_expression("v", sql["v"])
        .column_by_expression("ts", f"TO_TIMESTAMP_LTZ(({sql['t']}) / 1000, 3)")
        .watermark("ts", "ts")
        .build()
    )
    tables.create_temporary_view("numbered", numbers, schema)


def _sql(tables: Any, task: str) -> Any:
    window = f"TUMBLE(TABLE numbered, DESCRIPTOR(ts), INTERVAL '{WINDOW_S}' SECOND)"
    start = "TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start)"
    return tables.sql_query(
        {
            "pass_through": "SELECT k, v FROM numbered",
            "sum": "SELECT k, SUM(v) AS s FROM numbered GROUP BY k",
            "windowed": f"SELECT k, CAST({start} AS BIGINT) AS w, COUNT(*) AS n FROM TABLE({window}) "
            "GROUP BY k, window_start, window_end",
        }[task]
    )


def _aggregate_function(tables: Any, task: str) -> Any:
    """The function per key as an aggregate function of the Table API."""
    from pyflink.table import AggregateFunction, DataTypes
    from pyflink.table.udf import udaf

    class Fold(AggregateFunction):  # type: ignore[misc]
        def create_accumulator(self) -> list[int]:
            return [0, 0, 0]

        def accumulate(self, accumulator: list[int], v: int) -> None:
            accumulator[:] = fold((accumulator[0], accumulator[1], accumulator[2]), v)

        def get_value(self, accumulator: list[int]) -> list[int]:
            return list(accumulator)

    numbers = DataTypes.ARRAY(DataTypes.BIGINT())
    function = udaf(Fold(), result_type=numbers, accumulator_type=numbers, name="fold")
    tables.create_temporary_function("fold", function)
    tables.create_temporary_view(
        "folded", tables.sql_query("SELECT k, fold(v) AS a FROM numbered GROUP BY k")
    )
    return tables.sql_query("SELECT k, a[1] AS n, a[2] AS c, a[3] AS seen FROM folded")


def _datastream(tables: Any, task: str) -> Any:
    """The task with functions in Python."""
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    long = Types.LONG()
    columns = "k, v, ts" if task == "windowed" else "k, v"
    rows = tables.to_data_stream(tables.sql_query(f"SELECT {columns} FROM numbered"))
    if task == "pass_through":
        passed = rows.map(lambda row: row, output_type=Types.ROW_NAMED(["k", "v"], [long, long]))
        return tables.from_data_stream(passed)
    keyed = rows.key_by(lambda row: row[0], key_type=long)
    if task == "windowed":
        return tables.from_data_stream(_counted(keyed))

    class Sum(KeyedProcessFunction):  # type: ignore[misc]
        def open(self, context: Any) -> None:
            self.total = context.get_state(ValueStateDescriptor("s", Types.LONG()))

        def process_element(self, row: Any, context: Any) -> Iterator[Any]:
            total = (self.total.value() or 0) + row[1]
            self.total.update(total)
            yield row[0], total

    class Fold(KeyedProcessFunction):  # type: ignore[misc]
        def open(self, context: Any) -> None:
            kind = Types.PICKLED_BYTE_ARRAY()
            self.state = context.get_state(ValueStateDescriptor("state", kind))

        def process_element(self, row: Any, context: Any) -> Iterator[Any]:
            state = fold(self.state.value(), row[1])
            self.state.update(state)
            if state[0] % REPORT_EVERY == 0:
                yield (row[0], *state)

    width = 2 if task == "sum" else 4
    kind = Types.TUPLE([long] * width)
    return tables.from_data_stream(
        keyed.process(Sum() if task == "sum" else Fold(), output_type=kind)
    )


def _counted(keyed: Any) -> Any:
    from pyflink.common import Time, Types
    from pyflink.datastream.functions import (
        AggregateFunction,
        ProcessWindowFunction,
    )
    from pyflink.datastream.window import (
        TumblingEventTimeWindows,
    )

    class Count(AggregateFunction):  # type: ignore[misc]
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: Any, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, a: int, b: int) -> int:
            return a + b

    class Named(ProcessWindowFunction):  # type: ignore[misc]
        def process(self, key: int, context: Any, elements: Any) -> Iterator[Any]:
            (n,) = elements
            yield key, context.window().start * 1000 // SECOND_US, n

    long = Types.LONG()
    windows = keyed.window(TumblingEventTimeWindows.of(Time.seconds(WINDOW_S)))
    return windows.aggregate(
        Count(), Named(), accumulator_type=long, output_type=Types.TUPLE([long] * 3)
    )


def _write(env: Any, tables: Any, out: Any, answer: Path) -> None:
    """Write the rows as text; those that are taken back begin with -U."""
    from pyflink.common import Encoder
    from pyflink.datastream.connectors.file_system import (
        FileSink,
    )

    sink = FileSink.for_row_format(str(answer), Encoder.simple_string_encoder()).build()
    tables.to_changelog_stream(out).sink_to(sink)
    env.execute()


if __name__ == "__main__":
    main(*sys.argv[1:6])
