"""Roads: the ways of one task's rows through the steps of a flow.

A courier takes its rows down one road after the other. Where hosts work, a road has two halves: first
all rows are sent, then the answers come back. What a task has to tell is known in between, and the
driver can know it while hosts still work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from penstock.courier.channels import Channels
from penstock.courier.delivery import Delivery
from penstock.exchange.tally import Tally
from penstock.operators.operator import ROWS
from penstock.plan.steps import KeyedStep, MapStep
from penstock.wire.report import Seen

Batches = Iterable[pa.RecordBatch]


class Road:
    """A way through one step: `send` all rows, then take what they became from `answer`.

    Both happen inside the road's context; leaving it early breaks off conversations with hosts.
    """

    told: Literal["never", "sent", "answered"] = "never"
    """When all that `tell` has to tell is known."""

    def __init__(self, delivery: Delivery, number: int) -> None:
        self._delivery = delivery
        self.reads = delivery.flow.reads(number)
        """The streams that it takes in, by number."""

    def __enter__(self) -> Road:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def send(self, inputs: Sequence[Batches]) -> None:
        """Take in all rows of the streams that it reads."""
        raise NotImplementedError

    def answer(self) -> Batches:
        """What the rows became. May be read after the road was left."""
        raise NotImplementedError

    def tell(self, seen: Seen) -> Seen:
        """The task's report, with what there is to tell of this road."""
        return seen


class MapRoad(Road):
    """A stateless step, done by the courier: each batch when it is asked for."""

    def __init__(self, delivery: Delivery, number: int, step: MapStep) -> None:
        super().__init__(delivery, number)
        self._step = step

    def send(self, inputs: Sequence[Batches]) -> None:
        (self._rows,) = inputs

    def answer(self) -> Batches:
        return self._delivery.work.mapped(self._step, self._rows)


class _ChannelRoad(Road):
    """A road to hosts, by the task's channels to them."""

    def __init__(self, delivery: Delivery, number: int, channels: Channels) -> None:
        super().__init__(delivery, number)
        self._channels = channels
        self._all: list[Channels] = []
        """Channels that are open, in the order of their answers."""
        self._stack = ExitStack()

    def __enter__(self) -> Road:
        self._open(self._channels)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.__exit__(*raised)  # type: ignore[arg-type]

    def _open(self, channels: Channels) -> Channels:
        self._all.append(self._stack.enter_context(channels))
        return channels

    def _end(self, kind: str, alone: bool = False) -> None:
        """All rows of the first channels are sent, and are of this kind."""
        self._channels.pass_point("courier.sent")
        self._channels.end(kind, self._delivery.input.whole_rows, alone)

    def answer(self) -> Batches:
        aside = self._delivery.aside
        rows = [batch for channels in self._all for batch in channels.answer(aside)]
        self._channels.pass_point("courier.closed")
        return rows


class HostRoad(_ChannelRoad):
    """A keyed step: its rows go to the hosts that own their slots."""

    told = "sent"

    def __init__(self, delivery: Delivery, number: int, step: KeyedStep) -> None:
        routes = next(one for one in delivery.plan.steps if one.step == step.id)
        super().__init__(delivery, number, delivery.channels(routes))
        self._step, self._routes = step, routes
        self._tally = Tally(step, routes.watched)

    def send(self, inputs: Sequence[Batches]) -> None:
        work, step = self._delivery.work, self._step
        kind = self._send([work.fit(step, n, rows) for n, rows in enumerate(inputs)])
        self._end(kind, alone=self._routes.channels > 1)

    def _send(self, inputs: Sequence[Batches]) -> str:
        """Send what the step's sender makes of fit rows; returns which kind of records that is."""
        routes, channels, tally = self._routes, self._channels, self._tally
        sender = self._step.plan.sender(routes.time, routes.two_stage)
        channels.pass_point("courier.sender", sender=sender)
        return self._delivery.work.send(
            self._step, sender, inputs, lambda outgoing: channels.send(outgoing, tally)
        )

    def tell(self, seen: Seen) -> Seen:
        tally = self._tally
        loads = seen.loads | {self._step.id: tally.counts}
        return replace(seen, loads=loads, hot=(*seen.hot, *tally.hot()))


class ChainRoad(_ChannelRoad):
    """All steps at once: rows go to the one host that runs them, and come back as the flow's output."""

    told = "answered"

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, 0, delivery.chain_channel())

    def send(self, inputs: Sequence[Batches]) -> None:
        (rows,) = inputs
        for batch in rows:
            self._channels.write(0, batch)
        self._end(ROWS)


def direct_roads(delivery: Delivery) -> list[Road]:
    """The roads of a flow without burst workers, in the order of its steps."""
    flow = delivery.flow
    if flow.one_host and flow.keyed:
        return [ChainRoad(delivery)]
    return [
        MapRoad(delivery, number, step)
        if isinstance(step, MapStep)
        else HostRoad(delivery, number, step)
        for number, step in enumerate(flow.steps)
    ]
