"""The courier's conversation with the hosts of one keyed step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.courier.split import split
from penstock.courier.tally import Tally
from penstock.courier.trouble import Trouble
from penstock.faults import point
from penstock.operators.operator import Answer
from penstock.operators.places import in_order, split_places, with_serial
from penstock.plan.epoch import EpochPlan, StepRoutes
from penstock.plan.steps import KeyedStep
from penstock.wire.flight import Endpoint
from penstock.wire.messages import ALONE, CLOSE, ChannelHeader, dead_from_bytes

_endpoints: dict[tuple[str, str], Endpoint] = {}
"""Connections that a warm worker keeps between tasks. A new run has a new token, so no mix-up."""


Late = list[tuple[int, pa.RecordBatch]]
"""(input, rows) that came behind a step's watermark."""


def endpoint(location: str, token: str) -> Endpoint:
    """The kept connection to a location, or a new one."""
    found = _endpoints.get((location, token))
    if found is None:
        found = _endpoints[(location, token)] = Endpoint(location, token)
    return found


@dataclass(frozen=True)
class Task:
    """The Spark task that a courier runs in."""

    partition: int
    attempt: int


class Exchange:
    """Channels of one task attempt to all hosts of one step: write, then close and read.

    Every host hears from every courier, also when there is nothing to send: a host counts closed
    channels to know when the epoch's input is complete.

    If the flow is `ordered`, each record goes with its number in the stream of all that are sent;
    answers come back with the places of their rows, and are put in order by them.
    """

    def __init__(
        self,
        plan: EpochPlan,
        step: int,
        task: Task,
        timeout_ms: int,
        tally: Tally,
        ordered: bool = False,
        channel: int = 0,
    ) -> None:
        self._routes: StepRoutes = plan.steps[step]
        self.tally, self._ordered, self._serial = tally, ordered, 0
        header = ChannelHeader.of(plan, step, task.partition, task.attempt, channel)
        self.where = header.where
        self._streams: list[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]] = []
        self._begun: set[int] = set()
        # if one host is gone, the streams to the others are broken off
        with ExitStack() as stack:
            for location in self._routes.endpoints:
                exchange = endpoint(location, plan.token).exchange(codec.encode(header), timeout_ms)
                self._streams.append(stack.enter_context(exchange))
            self._stack = stack.pop_all()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.__exit__(*raised)  # type: ignore[arg-type]

    def send(self, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        """Send each row to the host that owns its slot, and count it."""
        slots = self.tally.note(batch, hashes)
        if self._ordered:
            batch, self._serial = with_serial(batch, self._serial), self._serial + batch.num_rows
        for host, part in split(batch, slots, self._routes.routes):
            writer = self._streams[host][0]
            if host not in self._begun:
                writer.begin(part.schema)
                self._begun.add(host)
            writer.write_batch(part)

    def close(self, kind: str, meanwhile: Callable[[], None]) -> Answer:
        """Close the channels and gather the answers. `meanwhile` is done while the hosts work."""
        point("courier.sent", **self.where)
        self.end(kind)
        meanwhile()
        answer = self.answer()
        point("courier.closed", **self.where)
        return answer

    def end(self, kind: str, alone: bool = False) -> None:
        """Close the channels, saying what they brought; `alone`: they close the second ones, too."""
        word = CLOSE + (ALONE * alone + kind).encode()
        for writer, _ in self._streams:
            writer.write_metadata(word)
            writer.done_writing()

    def answer(self) -> Answer:
        """What the hosts answer to channels that are closed: in their order, or that of places."""
        batches, dead = [], []
        for _, reader in self._streams:
            for chunk in reader:
                if chunk.data is not None and chunk.data.num_rows:
                    batches.append(chunk.data)
                if chunk.app_metadata is not None:
                    dead.extend(dead_from_bytes(chunk.app_metadata.to_pybytes()))
        if self._ordered:
            batches = in_order(*split_places(batches))
        return Answer(batches, dead)


def through_hosts(
    step: KeyedStep,
    exchange: Exchange,
    inputs: Sequence[Iterable[pa.RecordBatch]],
    routes: StepRoutes,
    trouble: Trouble,
    meanwhile: Callable[[Late], None],
) -> list[pa.RecordBatch]:
    """Take all batches through the hosts of a keyed step; give back what they answered.

    While the hosts work, `meanwhile` is called with the rows that came too late for the step.
    """
    sender = step.plan.sender(routes.time, routes.two_stage)
    point("courier.sender", **exchange.where, sender=sender)
    for number, batches in enumerate(inputs):
        for batch in batches:
            fit = trouble.without_unfit(step, number, batch)
            for outgoing in sender.add(number, fit):
                exchange.send(*outgoing)
    kind, rest = sender.finish()
    for outgoing in rest:
        exchange.send(*outgoing)
    answer = exchange.close(kind, lambda: meanwhile(sender.late))
    trouble.letters.extend(answer.dead)
    return answer.batches
