"""One task's questions to the functions of one segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from penstock.courier.exchange import Task
from penstock.faults import point
from penstock.offload.backends.backend import Invoker, Usage, WorkerFailed, invoker_at
from penstock.offload.backends.messages import Requests, WorkerAnswer
from penstock.offload.courier.invocations import Invocations, Portion, Taken, portions
from penstock.offload.courier.report import Offloaded
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.steps import FlowPlan, Step


class _Unreachable:
    """Stands for functions that a task has no way to. See `Invoker`."""

    request_limit: int | None = None

    def __init__(self, why: Exception) -> None:
        self._why = f"{type(why).__name__}: {why}"

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        raise WorkerFailed(f"functions cannot be reached: {self._why}")

    def taken(self) -> Usage:
        return Usage()


@dataclass(frozen=True)
class Asking:
    """What one task needs to know to ask functions of one segment."""

    flow: FlowPlan
    plan: EpochPlan
    task: Task
    segment: Segment
    offload: Offload
    time: EpochTime

    @property
    def at_once(self) -> int:
        """How many functions of those for all couriers one may keep busy."""
        return self.offload.at_once(self.task.partition, self.plan.partitions)

    @property
    def where(self) -> dict[str, object]:
        """What fault points tell."""
        plan, task = self.plan, self.task
        return {
            "step": self.segment.id,
            "epoch": plan.epoch,
            "run": plan.run,
            "partition": task.partition,
            "attempt": task.attempt,
        }

    @property
    def requests(self) -> Requests:
        segment = self.segment
        steps: list[Step] = [*segment.maps]
        if segment.keyed is not None:
            steps.append(segment.keyed)
        name = ".".join(str(fact) for fact in self.where.values())
        return Requests.of(self.flow, steps, self.time, name)

    def invoker(self) -> Invoker:
        assert self.plan.functions is not None
        try:
            return invoker_at(self.plan.functions)
        except Exception as failed:
            # another try of this task may reach them: the rows are theirs all the same
            return _Unreachable(failed)


class Asked(Generic[Taken]):
    """Rows that functions were asked about: which portion they are in, and what came of each.

    Functions work from the moment this is made, as many at a time as there are parts.
    """

    def __init__(
        self,
        asking: Asking,
        parts: Sequence[Sequence[pa.RecordBatch]],
        take: Callable[[WorkerAnswer], Taken],
    ) -> None:
        self._asking = asking
        point("courier.offload", **asking.where)
        invoker = asking.invoker()
        self.by_part = portions(asking.requests, parts, invoker.request_limit)
        """The portions that each part of the rows was cut into."""
        self._all = [portion for part in self.by_part for portion in part]
        self._returned = 0
        self._invocations = Invocations(
            invoker, self._all, take, len(parts), asking.offload.deadline_ms
        )

    def settled(self, alone: Callable[[Portion], Taken]) -> Iterator[tuple[Taken, bool]]:
        """For each portion in turn what came of it, and whether a function did that.

        What has no answer is done by `alone`, while functions still work on the rest.
        """
        made: dict[int, tuple[Taken, bool]] = {}
        for number, taken in self._invocations.finished():
            if taken is not None:
                made[number] = taken, True
            else:
                self._returned += self._all[number].rows
                made[number] = alone(self._all[number]), False
        point("courier.offloaded", **self._asking.where)
        return (made[number] for number in range(len(self._all)))

    def facts(self, records: int) -> Offloaded:
        """What there is to tell when all is settled; functions gave so many records."""
        failures: Counter[str] = self._invocations.failures
        return Offloaded(
            self._asking.segment.id,
            sum(portion.rows for portion in self._all),
            records,
            sum(not isinstance(portion.asks, WorkerFailed) for portion in self._all),
            dict(failures),
            self._returned,
            self._invocations.wait_ms,
        )
