"""Whether a session has room for hosts and couriers."""

from __future__ import annotations

from pyspark.sql import DataFrame

from penstock.errors import SettingError
from penstock.spark.private import is_local


def check_cores(source: DataFrame, hosts: int) -> None:
    """Hosts hold a task slot each, for as long as the query runs; couriers need at least one."""
    context, slots = source.sparkSession.sparkContext, task_slots(source)
    if slots is not None and slots < hosts + 1:
        more = (
            f"start the session with ps.session(cores={(hosts + 2) * task_cores(source)}) or more; "
            "in local mode there may be more of them than the machine has"
            if is_local(source.sparkSession)
            else "give the application more cores, or turn on dynamic allocation"
        )
        raise SettingError(
            f"{hosts} hosts and a courier need {hosts + 1} task slots, but the master "
            f"{context.master} has {slots}",
            hint=f"use fewer hosts, or {more}",
        )


def task_slots(source: DataFrame) -> int | None:
    """How many tasks can run at a time; None where that is not known, or changes."""
    context = source.sparkSession.sparkContext
    elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if elastic or context.getConf().get("spark.default.parallelism") is not None:
        return None
    return context.defaultParallelism // task_cores(source)


def task_cores(source: DataFrame) -> int:
    """The cores that Spark gives a task."""
    return int(source.sparkSession.sparkContext.getConf().get("spark.task.cpus", "1"))
