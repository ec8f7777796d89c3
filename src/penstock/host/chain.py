"""All steps of a flow in one host: an exchange inside the process, between steps that its workers share.

Couriers bring the rows of the source; maps, and what couriers else do before a keyed step, are done
here, chunk by chunk, beside the keyed work itself. Each step still has a machine of its own, with its
slots, its epochs and its part of the checkpoint: a channel opens, counts and closes in all of them at
once, or in none. So whatever the driver asks of a host holds here unchanged.

What the epoch's opening made due leaves a step before all rows of it; what a step gives once per
epoch leaves it behind the rows of the epoch's last channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.host.chain_stages import EpochEnd, Rows, UnderWay, chain_of
from penstock.host.chain_work import ChainWork
from penstock.host.machine import HostMachine
from penstock.operators.operator import Answer
from penstock.operators.places import Places
from penstock.plan.steps import FlowPlan
from penstock.runtime.runtime import Runtime
from penstock.settings import Settings
from penstock.wire.messages import ChannelHeader


class StepChain:
    """Takes channels through all steps, one at a time, with all workers of the host.

    `machines` are those of the keyed steps, in order. To couriers the chain is as one machine. The
    servers of all machines share a lock, which the caller holds.
    """

    def __init__(self, flow: FlowPlan, machines: Sequence[HostMachine], settings: Settings) -> None:
        self._machines, self._chunk_rows = machines, settings.chunk_rows
        self.output = flow.output
        self._steps = [step.id for step in flow.keyed]
        self._channel = UnderWay(flow.on_error)
        self._chain = chain_of(flow, machines, self._channel)
        self._runtime = Runtime(
            self._chain.stages, workers=settings.workers, schedule=settings.schedule
        )
        self.live = ChainWork(flow, machines, settings)
        """What does the rounds of live runs."""

    @property
    def machines(self) -> Sequence[HostMachine]:
        """The machines of the keyed steps, in order."""
        return self._machines

    def needs(self, header: ChannelHeader, kind: str, batches: list[pa.RecordBatch]) -> None:
        """Nothing: all state of a chain's steps was brought before its first epoch."""

    def close_channel(
        self,
        header: ChannelHeader,
        kind: str,
        batches: list[pa.RecordBatch],
        places: Places | None = None,
    ) -> Answer:
        """Take in a channel whose input is complete, through all steps or none, and answer it."""
        asked = [channel.step for channel in header.steps]
        if asked != self._steps:
            raise ProtocolError(f"a host of {self._steps} cannot take a channel for {asked}")
        steps = list(zip(self._machines, header.steps, strict=True))
        kept = [machine.begin_channel(channel) for machine, channel in steps]
        if kept[0] is not None:
            return kept[0]
        self._channel.begin(header)
        marks = [machine.operator.table.savepoint() for machine in self._machines]
        before = self._runtime.meters
        try:
            given = self._run(header, batches)
        except BaseException:
            self._undo(marks)
            raise
        aside = self._channel.aside
        answer = Answer(given, aside.dead, late=aside.late)
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
            # A step gets what the one before it fired first, then what became of all others'.
            ahead[after] = keyed.rows(fired - place, answer)
        given = ahead.pop(len(chain.stages), [])
        given += [item for item in self._runtime.run(items, ahead) if isinstance(item, Rows)]
        return [batch for rows in given for batch in rows.batches]

    def _chunks(self, batches: list[pa.RecordBatch], first: int) -> Iterator[Rows]:
        """The channel's rows, cut where they are many."""
        size, numbers = self._chunk_rows, count(first)
        for batch in batches:
            for begin in range(0, batch.num_rows, size):
                yield Rows(next(numbers), [batch.slice(begin, size)])

    def _undo(self, marks: Sequence[int]) -> None:
        """Nothing of the channel is to be used."""
        if self._channel.closed:
            # what an epoch gives once cannot be asked for twice
            for machine in self._machines:
                machine.give_up_run()
            return
        for machine, mark in zip(self._machines, marks, strict=True):
            machine.operator.table.undo(mark)

    def end(self) -> None:
        """No more channels will come."""
        self._runtime.close()
        self.live.end()
