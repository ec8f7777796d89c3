"""One task's questions to the burst workers of one segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic

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

    def ask(
        self, parts: Sequence[Sequence[pa.RecordBatch]], take: Callable[[WorkerAnswer], Taken]
    ) -> Asked[Taken]:
        """Let as many burst workers as there are parts work on the rows, from now on.

        `take` is called with each answer, in any thread.
        """
        plan, task, segment = self._delivery.plan, self._delivery.task, self.segment
        where = {
            "step": segment.id,
            "epoch": plan.epoch,
            "run": plan.run,
            "partition": task.partition,
            "attempt": task.attempt,
        }
        point("courier.offload", **where)
        steps: list[Step] = [*segment.maps]
        if segment.keyed is not None:
            steps.append(segment.keyed)
        name = ".".join(map(str, where.values()))
        requests = Requests.of(self._delivery.flow, steps, self.time, name)
        return Asked(where, self._invoker(), requests, parts, take, self.offload.deadline_ms)

    def note(self, facts: Offloaded) -> None:
        """All that was asked is settled."""
        self._facts.append(facts)

    def tell(self, seen: Seen) -> Seen:
        """The task's report, with what there is to tell of these questions."""
        if not self._facts:
            return seen
        self._used += self._invoker().taken()
        return replace(seen, offloaded=(*seen.offloaded, *self._facts), used=seen.used + self._used)

    def _invoker(self) -> Invoker:
        reach = self._delivery.plan.functions
        assert reach is not None
        try:
            return invoker_at(reach)
        except Exception as failed:
            # another try of this task may reach them: the rows are theirs all the same
            return _Unreachable(failed)


class Asked(Generic[Taken]):
    """Rows that burst workers were asked about: which portion they are in, and what came of each."""

    def __init__(
        self,
        where: dict[str, object],
        invoker: Invoker,
        requests: Requests,
        parts: Sequence[Sequence[pa.RecordBatch]],
        take: Callable[[WorkerAnswer], Taken],
        deadline_ms: int,
    ) -> None:
        self._where = where
        self.by_part = portions(requests, parts, invoker.request_limit)
        """The portions that each part of the rows was cut into."""
        self._all = [portion for part in self.by_part for portion in part]
        self._returned = 0
        self._invocations = Invocations(invoker, self._all, take, len(parts), deadline_ms)

    def settled(self, alone: Callable[[Portion], Taken]) -> Iterator[tuple[Taken, bool]]:
        """For each portion in turn what came of it, and whether a burst worker did that.

        What has no answer is done by `alone`, while burst workers still work on the rest.
        """
        made: dict[int, tuple[Taken, bool]] = {}
        for number, taken in self._invocations.finished():
            if taken is not None:
                made[number] = taken, True
            else:
                self._returned += self._all[number].rows
                made[number] = alone(self._all[number]), False
        point("courier.offloaded", **self._where)
        return (made[number] for number in range(len(self._all)))

    def facts(self, records: int) -> Offloaded:
        """What there is to tell when all is settled; burst workers gave so many records."""
        return Offloaded(
            str(self._where["step"]),
            sum(portion.rows for portion in self._all),
            records,
            sum(not isinstance(portion.asks, WorkerFailed) for portion in self._all),
            dict(self._invocations.failures),
            self._returned,
            self._invocations.wait_ms,
        )
