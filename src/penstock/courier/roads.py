"""Roads: the ways of one task's rows through the steps of a flow.

A courier takes its rows along one road after the other. A road to hosts has two halves: first all rows are
sent, then the answers come back. The task's report is complete in between, so that the driver can have it
while hosts still work.
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
from penstock.operators.operator import ROWS, Outgoing
from penstock.plan.steps import KeyedStep, MapStep
from penstock.wire.report import Seen

Batches = Iterable[pa.RecordBatch]


class Road:
    """A way through one step: `send` all rows, then read the output from `answer`.

    Both happen inside the road's context. Leaving it early cancels the streams to hosts.
    """

    report_when: Literal["never", "sent", "answered"] = "never"
    """When this road's part of the report is known: after `send`, after `answer`, or it has none."""

    def __init__(self, delivery: Delivery, number: int) -> None:
        self._delivery = delivery
        self.reads = delivery.flow.reads(number)
        """Numbers of the streams that the road reads."""

    def __enter__(self) -> Road:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def send(self, inputs: Sequence[Batches]) -> None:
        """Read and send all rows of the streams that the road reads."""
        raise NotImplementedError

    def answer(self) -> Batches:
        """Return the output rows. They may be read after the road's context was left."""
        raise NotImplementedError

    def tell(self, seen: Seen) -> Seen:
        """Return the task's report with this road's part added."""
        return seen


class MapRoad(Road):
    """A stateless step, which the courier runs itself, batch by batch on demand."""

    def __init__(self, delivery: Delivery, number: int, step: MapStep) -> None:
        super().__init__(delivery, number)
        self._step = step

    def send(self, inputs: Sequence[Batches]) -> None:
        (self._rows,) = inputs

    def answer(self) -> Batches:
        return self._delivery.work.mapped(self._step, self._rows)


class _ChannelRoad(Road):
    """A road to hosts, over the task's channels."""

    def __init__(self, delivery: Delivery, number: int, channels: Channels) -> None:
        super().__init__(delivery, number)
        self._channels, self._laps = channels, delivery.laps
        self._all: list[Channels] = []
        """Open channels, in the order of their answers."""
        self._stack = ExitStack()

    def __enter__(self) -> Road:
        self._open(self._channels)
        self._laps.lap("open")
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.__exit__(*raised)  # type: ignore[arg-type]

    def _open(self, channels: Channels) -> Channels:
        self._all.append(self._stack.enter_context(channels))
        return channels

    def _end(self, kind: str, alone: bool = False) -> None:
        """Close the first channels after all their records, of this kind, were sent."""
        self._laps.lap("combine")
        self._channels.pass_point("courier.sent")
        self._channels.end(kind, self._delivery.input.whole_rows, alone)
        self._laps.lap("send")

    def answer(self) -> Batches:
        aside = self._delivery.aside
        rows = [batch for channels in self._all for batch in channels.answer(aside)]
        self._channels.pass_point("courier.closed")
        self._laps.lap("answer")
        return rows


class HostRoad(_ChannelRoad):
    """A keyed step: its rows go to the hosts that own their slots."""

    report_when = "sent"

    def __init__(self, delivery: Delivery, number: int, step: KeyedStep) -> None:
        routes = next(routes for routes in delivery.plan.steps if routes.step == step.id)
        super().__init__(delivery, number, delivery.channels(routes))
        self._step, self._routes = step, routes
        self._tally = Tally(step, routes.watched, routes.routes.slots)

    def send(self, inputs: Sequence[Batches]) -> None:
        work, step = self._delivery.work, self._step
        kind = self._send([work.fit(step, n, rows) for n, rows in enumerate(inputs)])
        self._end(kind, alone=self._routes.channels > 1)

    def _send(self, inputs: Sequence[Batches]) -> str:
        """Send the records that the step's sender makes of these rows, and return their kind."""
        routes, channels, tally, laps = self._routes, self._channels, self._tally, self._laps
        sender = self._step.plan.sender(routes.time, routes.two_stage)
        channels.pass_point("courier.sender", sender=sender)

        def send(outgoing: Outgoing) -> None:
            laps.lap("combine")
            channels.send(outgoing, tally)
            laps.lap("send")

        return self._delivery.work.send(self._step, sender, inputs, send)

    def tell(self, seen: Seen) -> Seen:
        tally = self._tally
        loads = seen.loads | {self._step.id: tally.counts}
        return replace(seen, loads=loads, hot=(*seen.hot, *tally.hot()))


class ChainRoad(_ChannelRoad):
    """All steps at once: rows go to the one host that runs them, and come back as the flow's output."""

    report_when = "answered"

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, 0, delivery.chain_channel())

    def send(self, inputs: Sequence[Batches]) -> None:
        (rows,) = inputs
        for batch in rows:
            self._channels.write(0, batch)
        self._end(ROWS)


def direct_roads(delivery: Delivery) -> list[Road]:
    """Return the roads of a flow without burst workers, in the order of its steps."""
    flow = delivery.flow
    if flow.one_host and flow.keyed:
        return [ChainRoad(delivery)]
    return [
        MapRoad(delivery, number, step)
        if isinstance(step, MapStep)
        else HostRoad(delivery, number, step)
        for number, step in enumerate(flow.steps)
    ]
