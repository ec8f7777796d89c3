"""The epoch plan and partition of a Spark task."""

from __future__ import annotations

from pyspark import TaskContext

from penstock import codec
from penstock.courier.delivery import Task
from penstock.errors import ProtocolError
from penstock.plan.epoch import EpochPlan

PLAN = "penstock.plan"
"""Local property of Spark that carries the epoch's plan to its tasks."""


def current() -> tuple[EpochPlan, Task]:
    """The plan and the partition of the task that calls this."""
    context = TaskContext.get()
    text = context.getLocalProperty(PLAN) if context is not None else None
    if context is None or not text:
        raise ProtocolError(
            "the output of a flow was read outside its epoch",
            hint="read the DataFrame of foreach_batch only inside that function",
        )
    return codec.decode(text, EpochPlan), Task(context.partitionId(), context.taskAttemptId())
