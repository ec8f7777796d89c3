"""Throughput of Spark's two APIs for state in Python, over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.errors import SettingError
from penstock_bench import sides
from penstock_bench.report import Show
from penstock_bench.sides import Triggers

_OUTPUT = "k long, s long"


class _Sum(StatefulProcessor):
    """A keyed sum, as a user of transformWithStateInPandas writes it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "s long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],  # of pandas DataFrames
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        held = self._sum.get()
        total = held[0] if held is not None else 0
        total += sum(int(part["v"].sum()) for part in rows)
        self._sum.update((total,))
        yield pd.DataFrame({"k": [key[0]], "s": [total]})

    def close(self) -> None:
        pass


def _sum_group(
    key: tuple[int], parts: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    total = state.get[0] if state.exists else 0
    total += sum(int(part["v"].sum()) for part in parts)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "s": [total]})


def _transform(df: DataFrame) -> DataFrame:
    return df.groupBy("k").transformWithStateInPandas(_Sum(), _OUTPUT, "update", "none")


def _apply(df: DataFrame) -> DataFrame:
    return df.groupBy("k").applyInPandasWithState(
        _sum_group, _OUTPUT, "s long", "update", GroupStateTimeout.NoTimeout
    )


def check() -> None:
    """Raise at once if protobuf is missing, which PySpark needs here but does not install."""
    try:
        import_module("google.protobuf.descriptor")
    except ImportError as missing:
        raise SettingError(
            "transformWithStateInPandas needs the package protobuf, which is not installed",
            hint="pip install protobuf",
        ) from missing


_WAYS = {"transform_with_state_in_pandas": _transform, "apply_in_pandas_with_state": _apply}


def measure(
    spark: SparkSession, keys: int, batch_rows: tuple[int, ...], show: Show
) -> dict[str, dict[str, float]]:
    """Rows per second of both APIs, for each number of rows per epoch. A small first, cold epoch does not
    count."""
    sides.keep_state_in(spark, sides.ROCKSDB)
    rates: dict[str, dict[str, float]] = {name: {} for name in _WAYS}
    for name, make in _WAYS.items():
        for rows in batch_rows:
            with sides.updates(make(sides.spread(spark, rows, keys))) as query:
                # A large epoch takes minutes, so its cold start does not matter.
                counted = 1 if rows < 100_000 else 0
                epoch = Triggers(query).progress(until=counted, timeout_s=1800)[counted]
            rate = rows / float(epoch["durationMs"]["triggerExecution"]) * 1000
            rates[name][str(rows)] = rate
            show(f"{rows:>9,} rows: {name} {rate:,.0f} rows/s")
    return rates
