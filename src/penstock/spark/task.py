"""How a Spark task learns which plan it runs under and which part of the epoch it is."""

from __future__ import annotations

from pyspark import TaskContext

from penstock import codec
from penstock.courier.delivery import Task
from penstock.errors import ProtocolError
from penstock.plan.epoch import EpochPlan

PLAN = "penstock.plan"
"""The Spark local property that carries the plan of the epoch to its tasks."""


def current() -> tuple[EpochPlan, Task]:
    """The plan and place of the task that this is called in."""
    context = TaskContext.get()
    text = context.getLocalProperty(PLAN) if context is not None else None
    if context is None or not text:
        raise ProtocolError(
            "a flow's output was read outside of its epoch",
            hint="read the DataFrame given to foreach_batch only inside that function",
        )
    return codec.decode(text, EpochPlan), Task(context.partitionId(), context.taskAttemptId())
