"""Memory of a host's process: empty, per key of state, and after thousands of epochs."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock_bench import sides
from penstock_bench.report import Show
from penstock_bench.sides import Triggers

_MB = 2**20
_ROWS = 200_000
"""New keys per epoch."""


def measure(spark: SparkSession, keys: int, epochs: int, show: Show) -> dict[str, float]:
    """Measure resident memory, as reported by the operating system."""
    empty, per_key = _grow(spark, keys)
    show(f"host: {empty:.0f} MB empty, {per_key:.1f} bytes per key")
    young, old = _age(spark, epochs)
    show(f"host: {young:.0f} MB after {epochs // 10} epochs, {old:.0f} MB after {epochs}")
    return {
        "host_mb_empty": empty,
        "bytes_per_key": per_key,
        "host_mb_young": young,
        "host_mb_old": old,
        "growth_mb": old - young,
    }


def _grow(spark: SparkSession, keys: int) -> tuple[float, float]:
    """Memory of an empty host in MB, and additional bytes per key."""
    # The first epoch has only one key: the host has then run all its code, but holds no state.
    value = F.col("value")
    key = F.when(value < _ROWS, F.lit(0)).otherwise(value)
    rows = sides.numbered(spark, _ROWS).select(key.alias("k"), value.alias("v"))
    with sides.penstock_sum(rows) as query:
        triggers = Triggers(query.spark_query())
        triggers.progress(until=0)
        empty = _mb(query)
        triggers.progress(until=keys // _ROWS)
        hosts = query.progress[-1].hosts
        entries = sum(host.entries for host in hosts)
        return empty, (_mb(query) - empty) * len(hosts) * _MB / entries


def _age(spark: SparkSession, epochs: int) -> tuple[float, float]:
    """Memory of a host in MB after a tenth of the epochs and after all of them, with the same keys."""
    value = F.col("value")
    rows = sides.numbered(spark, 1000).select((value % 1000).alias("k"), value.alias("v"))
    with sides.penstock_sum(rows) as query:
        triggers = Triggers(query.spark_query())
        triggers.progress(until=epochs // 10)
        young = _mb(query)
        triggers.progress(until=epochs, timeout_s=3600)
        return young, _mb(query)


def _mb(query: ps.FlowQuery) -> float:
    """Mean resident memory of a host in MB."""
    sizes = query.host_memory().values()
    return sum(sizes) / len(sizes) / _MB
