"""The courier's conversation with the hosts of one keyed step."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from penstock.courier.split import split
from penstock.courier.trouble import Trouble
from penstock.operators.aggregates import AggregatePlan, Combiner, pack
from penstock.operators.operator import Answer
from penstock.plan.epoch import EpochPlan, StepRoutes
from penstock.plan.steps import KeyedStep
from penstock.wire.flight import Endpoint
from penstock.wire.messages import CLOSE, ChannelHeader, dead_from_bytes

_endpoints: dict[tuple[str, str], Endpoint] = {}
"""Connections that a warm worker keeps between tasks. A new run has a new token, so no mix-up."""


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
    """

    def __init__(self, plan: EpochPlan, step: int, task: Task, kind: str, timeout_ms: int) -> None:
        self._routes: StepRoutes = plan.steps[step]
        header = ChannelHeader.of(plan, step, task.partition, task.attempt, kind).to_bytes()
        self._stack = ExitStack()
        self._streams: list[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]] = []
        self._begun: set[int] = set()
        for location in self._routes.endpoints:
            exchange = endpoint(location, plan.token).exchange(header, timeout_ms)
            self._streams.append(self._stack.enter_context(exchange))

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.__exit__(*raised)  # type: ignore[arg-type]

    def send(self, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        """Send each row to the host that owns its slot."""
        for host, part in split(batch, hashes, self._routes.routes):
            writer = self._streams[host][0]
            if host not in self._begun:
                writer.begin(part.schema)
                self._begun.add(host)
            writer.write_batch(part)

    def close(self) -> Answer:
        """Close the channels and gather the answers, in the order of the hosts."""
        for writer, _ in self._streams:
            writer.write_metadata(CLOSE)
            writer.done_writing()
        answer = Answer()
        for _, reader in self._streams:
            for chunk in reader:
                if chunk.data is not None and chunk.data.num_rows:
                    answer.batches.append(chunk.data)
                if chunk.app_metadata is not None:
                    answer.dead.extend(dead_from_bytes(chunk.app_metadata.to_pybytes()))
        return answer


def through_hosts(
    step: KeyedStep,
    index: int,
    batches: Iterable[pa.RecordBatch],
    plan: EpochPlan,
    task: Task,
    trouble: Trouble,
    timeout_ms: int,
) -> list[pa.RecordBatch]:
    """Take all batches through the hosts of a keyed step; give back what they answered."""
    keyed = (trouble.without_null_keys(step, batch) for batch in batches)
    if isinstance(step.plan, AggregatePlan):
        answer = _aggregate(step.plan, index, keyed, plan, task, timeout_ms)
    else:
        with Exchange(plan, index, task, "rows", timeout_ms) as exchange:
            for batch in keyed:
                exchange.send(batch, step.codec.encode(batch).hashes)
            answer = exchange.close()
    trouble.letters.extend(answer.dead)
    return answer.batches


def _aggregate(
    aggregates: AggregatePlan,
    index: int,
    batches: Iterable[pa.RecordBatch],
    plan: EpochPlan,
    task: Task,
    timeout_ms: int,
) -> Answer:
    """Combine before the exchange where that shrinks what is sent, else send the rows as they are."""
    combiner = Combiner(aggregates)
    seen: list[pa.RecordBatch] = []
    rest = iter(batches)
    for batch in rest:
        seen.append(batch)
        if combiner.combines:
            combiner.add(batch)
        if not combiner.combines:
            break
    if combiner.combines:
        del seen
        with Exchange(plan, index, task, "partials", timeout_ms) as exchange:
            keys, partials = combiner.finish()
            exchange.send(pack(aggregates.codec, keys, partials), keys.hashes)
            return exchange.close()
    with Exchange(plan, index, task, "rows", timeout_ms) as exchange:
        for batch in (*seen, *rest):
            exchange.send(combiner.raw(batch), aggregates.codec.encode(batch).hashes)
        return exchange.close()
