"""Junctions: where the streams that a step reads come together in a courier. Pure: values in, values out.

A keyed step's input arrives at a courier in *lanes*: one for each source, and one for each host of each
keyed step before it. A control message has a position in every lane: in a source's lane, where the courier
was when it received the message; in a host's lane, where the host echoed it. A lane is

    level   all messages in it have passed the junction: its rows pass at once
    ahead   a message in it has not passed: what follows waits until the other lanes have the message too

A checkpoint passes when every lane has delivered it. Then the items that waited behind it follow. So the
step gets exactly the rows of an epoch before the epoch's checkpoint, in whatever order hosts reply. A
message about this step's own hosts passes as soon as the messages before it have. Messages about the hosts
of other steps are dropped.

Slots may move from a host that is behind to one that is ahead. So event time does not pass a reroute in any
lane of its step before all these lanes have *caught up*: all output that was due for these slots is here.

The sink is a junction too, without hosts: a checkpoint that passes it has passed the courier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.plan.watermarks import Bound, Free
from penstock.wire.live import Message

Lane = tuple[int | str, str]
"""A lane's name: a source's number and "", or a keyed step and one of its hosts."""
_NEVER = 1 << 62


class InputRows(NamedTuple):
    """A batch on its way to an input of a step."""

    input: int
    batch: Any
    arrived_us: Any = None
    """Arrival times of its rows at this courier's source, in microseconds; None for rows from hosts."""


class LaneMark(NamedTuple):
    """Event-time progress of a lane. It applies behind the rows that came before it."""

    bound: Bound
    final: bool = False
    """Whether no more rows will come, so that windows may close."""


Item = InputRows | Message
"""Something that passes a junction on its way to a step."""


class Reach(NamedTuple):
    """Event-time progress over all lanes of a step."""

    watermark_ms: int | None
    """Lowest watermark of the lanes; None if one is not known yet, or all lanes are idle."""
    idle: bool
    final: bool


@dataclass
class _Lane:
    at: int
    """Number of the newest message that it has delivered."""
    mark: LaneMark
    leaves: int = _NEVER
    """Number of the message with which its host leaves: the lane delivers no later ones."""
    waiting: deque[tuple[int, InputRows | LaneMark]] = field(default_factory=deque)
    """Items behind a message that has not passed, each with the number of the newest such message."""
    caught_up: int = -1
    """Number of the newest reroute for whose slots it has delivered all output that was due."""
    later: LaneMark | None = None
    """Mark that takes effect when the other lanes have caught up."""


class Junction:
    """The lanes of one step, and the items that wait in them. Methods return the items that pass now, in
    order.

    >>> from penstock.wire.live import CheckpointMessage
    >>> a, b = ("sum", "sum/0"), ("sum", "sum/1")
    >>> top = Junction("top", {a: LaneMark(None), b: LaneMark(None)})
    >>> saved = Message(checkpoint=CheckpointMessage(number=0, epoch=7, durable=6))
    >>> top.tell(saved), top.echo(a, 0), top.take(a, InputRows(0, "late")), top.take(b, InputRows(0, "early"))
    ([], [], [], [InputRows(input=0, batch='early', arrived_us=None)])
    >>> top.echo(b, 0) == [saved, InputRows(0, "late")]
    True
    """

    def __init__(self, step: str | None, lanes: Mapping[Lane, LaneMark], after: int = -1) -> None:
        self.step, self.passed = step, after
        """Number of the newest message that passed or was dropped."""
        self._lanes = {name: _Lane(after, mark, caught_up=after) for name, mark in lanes.items()}
        self._reroutes: list[tuple[int, str]] = []
        """(number, step) of reroutes that not all lanes have caught up with, for steps that are read here."""
        self.ended_at: int | None = None
        """Number of the first checkpoint with no rows behind it: all lanes were final before it."""
        self._pending: deque[Message] = deque()
        """Messages that have not passed yet, oldest first."""
        self._reach: Reach | None = None

    def take(self, lane: Lane, item: InputRows | LaneMark) -> list[Item]:
        """Accept rows, or a mark, from a lane."""
        here = self._lanes[lane]
        if here.at > self.passed:
            here.waiting.append((here.at, item))
            return []
        return self._through(lane, item)

    def echo(self, lane: Lane, number: int) -> list[Item]:
        """Record that a lane has delivered this message, and so all older ones."""
        here = self._lanes[lane]
        here.at = max(here.at, number)
        return self._go_on()

    def tell(self, message: Message) -> list[Item]:
        """Accept the next control message from the driver."""
        self._pending.append(message)
        reroute = message.reroute
        if reroute is not None and any(step == reroute.step for step, _ in self._lanes):
            self._reroutes.append((reroute.number, reroute.step))
        return self._go_on()

    def caught_up(self, lane: Lane, number: int) -> None:
        """Record that a lane has delivered all output due for the slots of this reroute and of older ones."""
        here = self._lanes[lane]
        here.caught_up = max(here.caught_up, number)
        self._let_time_on()

    def join(self, lane: Lane, mark: LaneMark, after: int) -> None:
        """Add the lane of a host that joins. It delivers only messages after `after`."""
        self._lanes[lane] = _Lane(after, mark, caught_up=after)
        self._reach = None

    def part(self, lane: Lane, number: int) -> list[Item]:
        """Mark a lane's host as leaving with this message. Once it has echoed that, it holds nothing back."""
        self._lanes[lane].leaves = number
        self._reach = None
        self._let_time_on()
        return self._go_on()

    def gone(self, lane: Lane) -> list[Item]:
        """Handle the end of a host's stream. A host that leaves has replied to everything by then."""
        leaves = self._lanes[lane].leaves
        if leaves == _NEVER:
            return []
        self.caught_up(lane, leaves)
        return self.echo(lane, leaves)

    @property
    def reach(self) -> Reach:
        """Event-time progress of the items that have passed."""
        if self._reach is None:
            marks = [lane.mark for lane in self._lanes.values() if lane.leaves == _NEVER]
            bounds = [mark.bound for mark in marks if not isinstance(mark.bound, Free)]
            known = [bound for bound in bounds if bound is not None]
            least = min(known) if known and len(known) == len(bounds) else None
            final = bool(marks) and all(mark.final for mark in marks)
            self._reach = Reach(least, not bounds, final)
        return self._reach

    def _through(self, name: Lane, item: InputRows | LaneMark) -> list[Item]:
        if isinstance(item, InputRows):
            return [item]
        self._lanes[name].later = item
        self._let_time_on()
        return []

    def _let_time_on(self) -> None:
        self._reroutes = [
            reroute for reroute in self._reroutes if not self._all_caught_up(*reroute)
        ]
        for (step, _), lane in self._lanes.items():
            if lane.later is None or any(of == step and n <= lane.at for n, of in self._reroutes):
                continue
            if lane.later != lane.mark:
                lane.mark, self._reach = lane.later, None
            lane.later = None

    def _all_caught_up(self, number: int, step: str) -> bool:
        lanes = (lane for (of, _), lane in self._lanes.items() if of == step)
        return all(lane.caught_up >= min(number, lane.leaves) for lane in lanes)

    def _go_on(self) -> list[Item]:
        items: list[Item] = []
        while self._pending and self._is_whole(self._pending[0]):
            message = self._pending.popleft()
            self.passed = message.number
            if message.checkpoint or _step_of(message) == self.step:
                items.append(message)
            if self.ended_at is None and message.checkpoint and self.reach.final:
                self.ended_at = message.number
            for name in self._lanes:
                items += self._follow(name)
        return items

    def _is_whole(self, message: Message) -> bool:
        number = message.number
        return message.checkpoint is None or all(
            lane.at >= min(number, lane.leaves) for lane in self._lanes.values()
        )

    def _follow(self, name: Lane) -> list[Item]:
        """Release the items that waited in a lane, up to the next message that has not passed."""
        items, waiting = list[Item](), self._lanes[name].waiting
        while waiting and waiting[0][0] <= self.passed:
            items += self._through(name, waiting.popleft()[1])
        return items


def _step_of(message: Message) -> str | None:
    about = message.reroute or message.part
    return about.step if about else None


class Inlet(NamedTuple):
    """The end of a stream: an input of a keyed step, or the sink (step None)."""

    step: str | None
    input: int


def inlets(flow: FlowPlan) -> dict[int, list[Inlet]]:
    """Stream number -> the keyed steps that its rows enter, and the sink for the last stream."""
    ends: dict[int, list[Inlet]] = {}
    for number, step in enumerate(flow.steps):
        if isinstance(step, KeyedStep):
            for input, stream in enumerate(flow.reads(number)):
                ends.setdefault(stream, []).append(Inlet(step.id, input))
    ends.setdefault(len(flow.sources) + len(flow.steps) - 1 if flow.steps else 0, []).append(
        Inlet(None, 0)
    )
    return ends


def read_by(flow: FlowPlan) -> dict[str | None, tuple[int | str, ...]]:
    """Keyed step, or None for the sink -> the sources and keyed steps that feed it.

    Sources are named by number. Stateless steps in between are skipped.
    """
    made: list[int | str] = list(range(len(flow.sources)))
    for number, step in enumerate(flow.steps):
        made.append(step.id if isinstance(step, KeyedStep) else made[flow.reads(number)[0]])
    return {**dict(flow.graph), None: (made[-1] if flow.steps else 0,)}


def timeless(flow: FlowPlan) -> set[int | str]:
    """Sources and keyed steps without event time."""
    untimed: set[int | str] = {n for n, source in enumerate(flow.sources) if source.time is None}
    for step, reads in flow.graph:
        if untimed.issuperset(reads):
            untimed.add(step)
    return untimed
