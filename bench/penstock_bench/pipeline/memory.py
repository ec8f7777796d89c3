"""Memory of the processes of a query: of a host when empty, per key of state and after thousands of epochs;
of couriers, the driver and its JVM.

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
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock_bench import sides
from penstock_bench.report import Show
from penstock_bench.sides import Triggers

_MB = 2**20
_ROWS = 200_000
"""New keys per epoch."""


def measure(spark: SparkSession, keys: int, epochs: int, show: Show) -> dict[str, Any]:
    """Measure memory, as reported by the operating system. `host_mb_empty` is resident memory, and so is the
    growth."""
    empty, per_key, processes = _grow(spark, keys)
    for name, sizes in processes.items():
        parts = ", ".join(f"{size:.0f} MB {meaning}" for meaning, size in sizes.items())
        show(f"{name} without state: {parts}")
    show(f"host: {empty:.0f} MB empty, {per_key:.1f} bytes per key")
    young, old = _age(spark, epochs)
    show(f"host: {young:.0f} MB after {epochs // 10} epochs, {old:.0f} MB after {epochs}")
    return {
        "processes_mb": processes,
        "host_mb_empty": empty,
        "bytes_per_key": per_key,
        "host_mb_young": young,
        "host_mb_old": old,
        "growth_mb": old - young,
    }


def _grow(spark: SparkSession, keys: int) -> tuple[float, float, dict[str, dict[str, float]]]:
    """Memory of an empty host in MB, additional bytes per key, and the memory of all empty processes."""
    # The first epoch has only one key: the host has then run all its code, but holds no state.
    value = F.col("value")
    key = F.when(value < _ROWS, F.lit(0)).otherwise(value)
    rows = sides.numbered(spark, _ROWS).select(key.alias("k"), value.alias("v"))
    with sides.penstock_sum(rows) as query:
        triggers = Triggers(query.spark_query())
        triggers.progress(until=0)
        empty, processes = _mb(query), _processes(query)
        triggers.progress(until=keys // _ROWS)
        hosts = query.progress[-1].hosts
        entries = sum(host.entries for host in hosts)
        return empty, (_mb(query) - empty) * len(hosts) * _MB / entries, processes


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
