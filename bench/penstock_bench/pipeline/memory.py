"""Memory of the processes of a query: of a host when empty, per key of three kinds of state and after many
epochs; of couriers, the driver and its JVM.

*Resident* is all memory of a process that is in RAM (RSS). Workers are forked from a daemon that has loaded
everything, so most of that is shared: it counts once for each of them. *Unshared* is what would be free if
the process ended (USS). *Proportional* is unshared memory and a fair part of the shared one (PSS), so that
the processes of a machine add up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock_bench import sides
from penstock_bench.pipeline import many_epochs as aging
from penstock_bench.report import Show
from penstock_bench.sides import Triggers

_MB = 2**20
_ROWS = 200_000
"""New keys per epoch."""


def measure(
    spark: SparkSession, keys: int, epochs: int, many_epochs: int, show: Show
) -> dict[str, Any]:
    """Measure memory, as reported by the operating system. `host_mb_empty` is resident memory, and so is the
    growth: that of a host over `epochs`, and that of one process with everything over `many_epochs`."""
    empty, per_key, processes = _grow(spark, "int_sum", keys)
    for name, sizes in processes.items():
        parts = ", ".join(f"{size:.0f} MB {meaning}" for meaning, size in sizes.items())
        show(f"{name} without state: {parts}")
    show(f"host: {empty:.0f} MB empty, {per_key:.1f} bytes per key of int_sum")
    more: dict[str, float] = {}
    for kind in ("string_sum", "int_windowed"):
        more[kind] = _grow(spark, kind, keys // 2)[1]
        show(f"host: {more[kind]:.1f} bytes per key of {kind}")
    young, old = _age(spark, epochs)
    show(f"host: {young:.0f} MB after {epochs // 10} epochs, {old:.0f} MB after {epochs}")
    return {
        "processes_mb": processes,
        "host_mb_empty": empty,
        "bytes_per_key": per_key,
        "bytes_per_key_of": more,
        "host_mb_young": young,
        "host_mb_old": old,
        "growth_mb": old - young,
        "many_epochs": aging.measure(many_epochs, show),
    }


def figures(results: dict[str, Any]) -> dict[str, float]:
    """The metrics of memory."""
    of = results["bytes_per_key_of"]
    return {
        "host_mb_empty": results["host_mb_empty"],
        "bytes_per_key_int_sum": results["bytes_per_key"],
        "bytes_per_key_string_sum": of["string_sum"],
        "bytes_per_key_int_windowed": of["int_windowed"],
        "host_mb_growth_over_epochs": results["growth_mb"],
        "mb_growth_over_many_epochs": results["many_epochs"]["growth_mb"],
    }


def bytes_per_key(empty_mb: float, full_mb: float, hosts: int, keys: int) -> float:
    """Bytes per key, from the mean memory of a host with one key and with all keys.

    >>> bytes_per_key(100.0, 150.0, hosts=2, keys=2 * 2**20)
    50.0
    """
    return (full_mb - empty_mb) * hosts * _MB / keys


def _flow(kind: str, rows: DataFrame) -> ps.Flow:
    """A flow that keeps state of a kind, over rows with a number `k`."""
    if kind == "int_windowed":
        timed = ps.flow(rows.selectExpr("k", "timestamp_micros(v) AS ts"), event_time="ts")
        # All rows are in one window, which stays open.
        return timed.key_by("k", slots=64).window(ps.tumbling("1 hour")).aggregate(n=ps.count())
    if kind == "string_sum":
        rows = rows.selectExpr("'customer-' || lpad(k, 11, '0') AS k", "v")
    return ps.flow(rows).key_by("k", slots=64).aggregate(s=ps.sum("v"))


def _grow(
    spark: SparkSession, kind: str, keys: int
) -> tuple[float, float, dict[str, dict[str, float]]]:
    """Memory of an empty host in MB, additional bytes per key of this kind of state, and the memory of all
    empty processes."""
    # The first epoch has only one key: the host has then run all its code, but holds no state.
    value = F.col("value")
    key = F.when(value < _ROWS, F.lit(0)).otherwise(value)
    rows = sides.numbered(spark, _ROWS).select(key.alias("k"), value.alias("v"))
    with sides.folder(spark) as checkpoint:
        query = _flow(kind, rows).start(ps.to("noop"), checkpoint=checkpoint, hosts=2)
        try:
            triggers = Triggers(query.spark_query())
            triggers.progress(until=0)
            empty, processes = _mb(query), _processes(query)
            triggers.progress(until=keys // _ROWS)
            hosts = query.progress[-1].hosts
            entries = sum(host.entries for host in hosts)
            return empty, bytes_per_key(empty, _mb(query), len(hosts), entries), processes
        finally:
            query.stop()


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


def _processes(query: ps.FlowQuery) -> dict[str, dict[str, float]]:
    """Kind of process -> resident, proportional and unshared MB: the mean over all processes of the kind."""
    driver = psutil.Process(os.getpid())
    hosts = {psutil.Process(pid) for pid in query.status.hosts.values()}
    jvms = [child for child in driver.children() if "java" in child.name()]
    # Spark has a daemon for its RDDs, which forks hosts, and one for its DataFrames, which forks couriers.
    daemons = [child for jvm in jvms for child in jvm.children() if "python" in child.name()]
    couriers = {worker for daemon in daemons for worker in daemon.children()} - hosts
    kinds = {"host": hosts, "courier": couriers, "driver": [driver], "driver's JVM": jvms}
    return {kind: _sizes(members) for kind, members in kinds.items() if members}


def _sizes(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """Mean memory of some processes in MB."""
    infos = [process.memory_full_info() for process in processes]
    named = {"resident": "rss", "proportional": "pss", "unshared": "uss"}
    return {name: fmean(getattr(info, of) for info in infos) / _MB for name, of in named.items()}
