"""All steps of a flow in one host: rows pass from step to step inside the process.

Couriers send the rows of the source. The host runs the maps, and the work that couriers otherwise do
before a keyed step, chunk by chunk, beside the keyed work itself. Each step still has its own machine,
with its slots, its epochs and its part of the checkpoint. A channel opens and closes in all of these
machines at once, or in none. So the driver's orders work as for any other host.

Rows that fire when the epoch opens leave a step before its other rows. Rows that a step emits once per
epoch leave it after the rows of the epoch's last channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.host.chain_stages import EpochEnd, Rows, UnderWay, chain_of
from penstock.host.chain_work import ChainWork, must_fit
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.operators.operator import Answer
from penstock.operators.places import Places
from penstock.plan.steps import FlowPlan
from penstock.runtime.cores import WorkersByLoad
from penstock.runtime.runtime import Runtime
from penstock.settings import Settings
from penstock.wire.messages import ChannelHeader


class StepChain:
    """Takes one channel at a time through all steps, with all workers of the host.

    `machines` are those of the keyed steps, in order. To couriers the chain looks like one machine. The
    servers of all machines share a lock, which the caller holds.
    """

    def __init__(
        self,
        flow: FlowPlan,
        machines: Sequence[HostMachine],
        settings: Settings,
        memory_limit: int | None = None,
        by_load: WorkersByLoad | None = None,
    ) -> None:
        """`memory_limit` is the most bytes of state of all steps together; None: there is no limit.
        `by_load` chooses the number of workers; None: it is that of the settings."""
        self._machines, self._chunk_rows = machines, settings.chunk_rows
        self._limit = memory_limit
        self.output = flow.output
        self._steps = [step.id for step in flow.keyed]
        self._channel = UnderWay(flow.on_error)
        self._chain = chain_of(flow, machines, self._channel)
        workers = settings.workers if by_load is None else by_load.most
        self._runtime = Runtime(
            self._chain.stages, workers=workers, schedule=settings.schedule, by_load=by_load
        )
        for machine in machines:
            assert isinstance(machine.operator, PartedOperator)
            machine.operator.engaged = lambda: workers if by_load is None else by_load.workers
        self.live = ChainWork(flow, machines, settings, memory_limit, by_load)
        """Executor of the rounds of live runs."""

    @property
    def machines(self) -> Sequence[HostMachine]:
        """The machines of the keyed steps, in order."""
        return self._machines

    def needs(self, header: ChannelHeader, kind: str, batches: list[pa.RecordBatch]) -> None:
        """Return None: a chain has the state of all its steps before its first epoch."""

    def close_channel(
        self,
        header: ChannelHeader,
        kind: str,
        batches: list[pa.RecordBatch],
        places: Places | None = None,
    ) -> Answer:
        """Apply a channel whose input is complete, in all steps or in none, and return its answer."""
        requested = [channel.step for channel in header.steps]
        if requested != self._steps:
            raise ProtocolError(
                f"a host of steps {self._steps} cannot take a channel of {requested}"
            )
        steps = list(zip(self._machines, header.steps, strict=True))
        kept = [machine.begin_channel(channel) for machine, channel in steps]
        if kept[0] is not None:
            return kept[0]
        self._channel.begin(header)
        marks = [machine.operator.table.savepoint() for machine in self._machines]
        before = self._runtime.meters
        try:
            output = self._run(header, batches)
            must_fit(self._machines, self._limit)
        except BaseException:
            self._undo(marks)
            raise
        aside = self._channel.aside
        answer = Answer(output, aside.dead, late=aside.late)
        spent = self._chain.spent(before, self._runtime.meters)
        for (machine, channel), (rows, busy_s) in zip(steps, spent, strict=True):
            machine.keep(channel, answer, rows, busy_s)
        return answer

    def _run(self, header: ChannelHeader, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        steps, chain = header.steps, self._chain
        fired = len(chain.keyed)
        items: list[Rows | EpochEnd] = list(self._chunks(batches, fired + 1))
        if self._machines[0].ends_epoch(steps[0]):
            items.append(EpochEnd(fired + 1 + len(items)))
        ahead: dict[int, list[Rows]] = {}
        for place, (after, keyed) in enumerate(zip(chain.after, chain.keyed, strict=True)):
            answer = self._machines[place].fired(steps[place])
            # A step first gets the rows that the step before it fired, then those of earlier steps.
            ahead[after] = keyed.rows(fired - place, answer)
        output = ahead.pop(len(chain.stages), [])
        output += [item for item in self._runtime.run(items, ahead) if isinstance(item, Rows)]
        return [batch for rows in output for batch in rows.batches]

    def _chunks(self, batches: list[pa.RecordBatch], first: int) -> Iterator[Rows]:
        """Cut the channel's rows into chunks of at most `chunk_rows`."""
        size, numbers = self._chunk_rows, count(first)
        for batch in batches:
            for begin in range(0, batch.num_rows, size):
                yield Rows(next(numbers), [batch.slice(begin, size)])

    def _undo(self, marks: Sequence[int]) -> None:
        """Undo all changes of the channel, in every step."""
        if self._channel.closed:
            # A step's end-of-epoch output cannot be made twice, so the whole run is given up.
            for machine in self._machines:
                machine.give_up_run()
            return
        for machine, mark in zip(self._machines, marks, strict=True):
            machine.operator.table.undo(mark)

    def end(self) -> None:
        """End the workers: no more channels will come."""
        self._runtime.close()
        self.live.end()
