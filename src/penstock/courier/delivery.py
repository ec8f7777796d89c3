"""One task attempt's work on one epoch: its plan, its input, its channels, and its calls to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.courier.channels import Channels, endpoint
from penstock.errors import CutInputError, ProtocolError
from penstock.exchange.aside import Aside
from penstock.exchange.step_work import StepWork
from penstock.faults import point
from penstock.plan.epoch import EpochPlan, StepRoutes
from penstock.plan.steps import FlowPlan
from penstock.spans import Laps, Span
from penstock.wire.access import Access
from penstock.wire.messages import ChannelHeader


@dataclass(frozen=True)
class Task:
    """The Spark task that a courier runs in."""

    partition: int
    attempt: int


class Input:
    """The input of one task attempt: read once, counted, and checked for completeness.

    Arrow cannot tell a stream that breaks off between two batches from one that has ended. So at the end
    `check_end` is called. It raises an error if Spark has not sent its end mark.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch] = (),
        check_end: Callable[[], None] = lambda: None,
        laps: Laps | None = None,
        **where: object,
    ) -> None:
        """Wrap the batches. `where` has the facts of the task for fault points."""
        self._batches, self._check_end, self._where = batches, check_end, where
        self._laps = laps or Laps(-1, "courier")
        self._rows, self._whole = 0, batches == ()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batches = iter(self._batches)
        while True:
            self._laps.lap("combine")
            try:
                batch = next(batches, None)
            except Exception as broken:
                raise CutInputError(f"the input of a task broke off: {broken}") from broken
            self._laps.lap("read")
            if batch is None:
                break
            self._rows += batch.num_rows
            point("courier.read", **self._where)
            yield batch
        self._check_end()
        self._whole = True

    @property
    def whole_rows(self) -> int:
        """Number of rows of the whole input, which must have been read. Needed to close a channel."""
        if not self._whole:
            raise ProtocolError("a courier must not close a channel before its input has ended")
        return self._rows


@dataclass(frozen=True)
class Delivery:
    """Context of one task attempt: flow, plan, task, settings, input, and the rows set aside so far."""

    flow: FlowPlan
    plan: EpochPlan
    task: Task
    access: Access
    """Credentials for hosts and the driver."""
    call_ms: int
    """Timeout of a call to the driver, in milliseconds."""
    exchange_ms: int
    """Timeout of a channel to a host, in milliseconds. A channel is open as long as the source has rows."""
    keep_late: bool = False
    """Whether late rows are sent to the driver, or only counted."""
    lost_ms: int = 5_000
    """Milliseconds without an answer after which a host is reported as lost."""
    aside: Aside = field(default_factory=Aside)
    input: Input = field(default_factory=Input)
    laps: Laps = field(default_factory=lambda: Laps(-1, "courier"))
    """Spans of the task."""
    told: list[Span] = field(default_factory=list)
    """Spans that were reported."""

    @cached_property
    def work(self) -> StepWork:
        """The steps' work that is done in the task itself."""
        return StepWork(self.flow.on_error, self.keep_late, self.aside)

    def channels(self, routes: StepRoutes, channel: int = 0) -> Channels:
        """Return the task's first (0) or second (1) channels to the hosts of a keyed step.

        The records of second channels are not ordered.
        """
        plan, task = self.plan, self.task
        header = ChannelHeader.of(plan, routes, task.partition, task.attempt, channel)
        ordered = self.flow.ordered and not channel
        return self._open(header, routes, ordered)

    def chain_channel(self) -> Channels:
        """Return the task's channel to the one host that runs all steps and answers in order."""
        plan, task = self.plan, self.task
        header = ChannelHeader.of_chain(plan, task.partition, task.attempt, self.keep_late)
        return self._open(header, plan.steps[0], ordered=False)

    def _open(self, header: ChannelHeader, routes: StepRoutes, ordered: bool) -> Channels:
        plan = self.plan
        return Channels(
            header, routes, plan.driver, self.access, self.exchange_ms, self.lost_ms, ordered
        )

    def tell_driver(self, action: str, **facts: Any) -> None:
        """Call an action of the driver with facts about this task."""
        plan = self.plan
        where = {"epoch": plan.epoch, "run": plan.run, "partition": self.task.partition}
        endpoint(plan.driver, self.access).call(action, self.call_ms, **where, **facts)
