"""One task's questions to the burst workers of one segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from penstock.courier.delivery import Delivery
from penstock.faults import point
from penstock.offload.backends.backend import Invoker, WorkerFailed, invoker_at
from penstock.offload.backends.messages import Requests, WorkerAnswer
from penstock.offload.courier.invocations import Invocations, Portion, Taken, portions
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import Offload
from penstock.plan.steps import Step
from penstock.wire.report import Offloaded, Seen, Usage


class _Unreachable:
    """Stands for burst workers that a task has no way to. See `Invoker`."""

    request_limit: int | None = None

    def __init__(self, why: Exception) -> None:
        self._why = f"{type(why).__name__}: {why}"

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        raise WorkerFailed(f"burst workers cannot be reached: {self._why}")

    def taken(self) -> Usage:
        return Usage()


class Questions:
    """What one task asks the burst workers of one segment, and has to tell of that."""

    def __init__(
        self, delivery: Delivery, segment: Segment, offload: Offload, time: EpochTime
    ) -> None:
        self.segment, self.offload, self.time = segment, offload, time
        self._delivery = delivery
        self._facts: list[Offloaded] = []
        self._used = Usage()

    @property
    def at_once(self) -> int:
        """How many burst workers this courier may keep busy."""
        delivery = self._delivery
        return self.offload.at_once(delivery.task.partition, delivery.plan.partitions)

    @cached_property
    def _where(self) -> dict[str, object]:
        """What fault points tell."""
        plan, task = self._delivery.plan, self._delivery.task
        return {
            "step": self.segment.id,
            "epoch": plan.epoch,
            "run": plan.run,
            "partition": task.partition,
            "attempt": task.attempt,
        }

    def ask(
        self, parts: Sequence[Sequence[pa.RecordBatch]], take: Callable[[WorkerAnswer], Taken]
    ) -> Invocations[Taken]:
        """Let as many burst workers as there are parts work on the rows, from now on.

        `take` is called with each answer, in any thread.
        """
        point("courier.offload", **self._where)
        steps: list[Step] = [*self.segment.maps]
        if self.segment.keyed is not None:
            steps.append(self.segment.keyed)
        name = ".".join(map(str, self._where.values()))
        requests = Requests.of(self._delivery.flow, steps, self.time, name)
        invoker = self._invoker()
        asked = portions(requests, parts, invoker.request_limit)
        return Invocations(invoker, asked, take, len(parts), self.offload.deadline_ms)

    def settled(
        self, invocations: Invocations[Taken], alone: Callable[[Portion], Taken]
    ) -> Iterator[tuple[Portion, Taken]]:
        """Each portion in turn, with what came of it.

        What has no answer is done by `alone`, while burst workers still work on the rest.
        """
        made: dict[int, Taken] = {}
        asked, returned = invocations.asked, 0
        for number, taken in invocations.finished():
            if taken is None:
                returned += asked[number].rows
                taken = alone(asked[number])
            made[number] = taken
        point("courier.offloaded", **self._where)
        self._facts.append(
            Offloaded(
                self.segment.id,
                rows=sum(portion.rows for portion in asked),
                records=invocations.records,
                invocations=sum(not isinstance(one.asks, WorkerFailed) for one in asked),
                failures=dict(invocations.failures),
                returned=returned,
                wait_ms=invocations.wait_ms,
            )
        )
        return ((portion, made[number]) for number, portion in enumerate(asked))

    def tell(self, seen: Seen) -> Seen:
        """The task's report, with what there is to tell of these questions."""
        if not self._facts:
            return seen
        self._used += self._invoker().taken()
        return replace(seen, offloaded=(*seen.offloaded, *self._facts), used=seen.used + self._used)

    def _invoker(self) -> Invoker:
        reach = self._delivery.plan.reach
        assert reach is not None
        try:
            return invoker_at(reach)
        except Exception as failed:
            # another try of this task may reach them: the rows are theirs all the same
            return _Unreachable(failed)
