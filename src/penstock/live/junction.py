"""Junctions: where the streams that a step reads come together in a courier. Pure: values in, values out.

What a keyed step reads in a courier comes by *lanes*: one for each source, and one for each host of each
keyed step before it. A control message is a point in every lane: in a source's where the courier was when
the driver told it, in a host's where the host has echoed it. A lane is

    level   it has brought no message that has not gone on yet: its rows go on at once
    ahead   it has brought one: what comes behind that waits, until the other lanes have brought it too

A checkpoint goes on when every lane has brought it; then what waited behind it follows. So the step gets
exactly the rows of an epoch before the epoch's checkpoint, whatever the order in which hosts answer. A
message about this step's own hosts goes on as soon as those before it have; one about others' is left out.

Slots that change hands may come from a host that is behind to one that is ahead. Time does not pass a
reroute in any lane of its step before all of them have *caught up*: what was due of these slots has come.

The sink is a junction too, without hosts: a checkpoint that goes on there has passed the courier.
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
"""A source by its number, and ""; or a keyed step and a host of it."""
_NEVER = 1 << 62


class InputRows(NamedTuple):
    """A batch on its way to an input of a step."""

    input: int
    batch: Any
    arrived_us: Any = None
    """When its rows arrived at a source of this courier; None: they come from hosts."""


class LaneMark(NamedTuple):
    """How far event time has come in a lane, behind the rows before it."""

    bound: Bound
    final: bool = False
    """Nothing more will come, and windows need not wait for any."""


Item = InputRows | Message
"""What goes on to a step."""


class Reach(NamedTuple):
    """How far event time has come in all that a step reads."""

    watermark_ms: int | None
    """None: a lane has not told yet, or all are quiet."""
    idle: bool
    final: bool


@dataclass
class _Lane:
    at: int
    """The newest message that it has brought."""
    mark: LaneMark
    leaves: int = _NEVER
    """The message with which its host parts: of later ones it brings none."""
    waiting: deque[tuple[int, InputRows | LaneMark]] = field(default_factory=deque)
    """What came behind a message that has not gone on, each with the newest such message."""
    caught_up: int = -1
    """The newest reroute of whose slots it has brought all that was due."""
    later: LaneMark | None = None
    """How far time has come, as soon as other lanes have caught up."""


class Junction:
    """What one step has got so far, and what waits for it. The calls return what goes on now, in order.

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
        """The newest message that went on, or was left out."""
        self._lanes = {name: _Lane(after, mark, caught_up=after) for name, mark in lanes.items()}
        self._reroutes: list[tuple[int, str]] = []
        """(number, step) of those of steps that are read here, that not all lanes have caught up with."""
        self.ended_at: int | None = None
        """The first checkpoint that nothing more will come behind: all lanes were final before it."""
        self._told: deque[Message] = deque()
        self._reach: Reach | None = None

    def take(self, lane: Lane, item: InputRows | LaneMark) -> list[Item]:
        """Rows, or how far time has come, from a lane."""
        here = self._lanes[lane]
        if here.at > self.passed:
            here.waiting.append((here.at, item))
            return []
        return self._through(lane, item)

    def echo(self, lane: Lane, number: int) -> list[Item]:
        """A lane has brought this message, and so all that are older."""
        here = self._lanes[lane]
        here.at = max(here.at, number)
        return self._go_on()

    def tell(self, message: Message) -> list[Item]:
        """The driver told the courier a message: the next one."""
        self._told.append(message)
        reroute = message.reroute
        if reroute is not None and any(step == reroute.step for step, _ in self._lanes):
            self._reroutes.append((reroute.number, reroute.step))
        return self._go_on()

    def caught_up(self, lane: Lane, number: int) -> None:
        """A lane has brought all that was due of slots of this reroute, and of older ones."""
        here = self._lanes[lane]
        here.caught_up = max(here.caught_up, number)
        self._let_time_on()

    def join(self, lane: Lane, mark: LaneMark, after: int) -> None:
        """A host of a step that is read here has joined: it brings messages after this one only."""
        self._lanes[lane] = _Lane(after, mark, caught_up=after)
        self._reach = None

    def part(self, lane: Lane, number: int) -> list[Item]:
        """A host leaves with this message: when it has echoed that, it holds back nothing more."""
        self._lanes[lane].leaves = number
        self._reach = None
        self._let_time_on()
        return self._go_on()

    def gone(self, lane: Lane) -> list[Item]:
        """The stream of a host has ended: one that leaves has answered everything."""
        leaves = self._lanes[lane].leaves
        if leaves == _NEVER:
            return []
        self.caught_up(lane, leaves)
        return self.echo(lane, leaves)

    @property
    def reach(self) -> Reach:
        """How far event time has come in what went on."""
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
        self._reroutes = [one for one in self._reroutes if not self._all_caught_up(*one)]
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
        gone: list[Item] = []
        while self._told and self._is_whole(self._told[0]):
            message = self._told.popleft()
            self.passed = message.number
            if message.checkpoint or _step_of(message) == self.step:
                gone.append(message)
            if self.ended_at is None and message.checkpoint and self.reach.final:
                self.ended_at = message.number
            for name in self._lanes:
                gone += self._follow(name)
        return gone

    def _is_whole(self, message: Message) -> bool:
        number = message.number
        return message.checkpoint is None or all(
            lane.at >= min(number, lane.leaves) for lane in self._lanes.values()
        )

    def _follow(self, name: Lane) -> list[Item]:
        """What waited in a lane, up to the next message that has not gone on."""
        gone, waiting = list[Item](), self._lanes[name].waiting
        while waiting and waiting[0][0] <= self.passed:
            gone += self._through(name, waiting.popleft()[1])
        return gone


def _step_of(message: Message) -> str | None:
    about = message.reroute or message.part
    return about.step if about else None


class Inlet(NamedTuple):
    """Where a stream ends: an input of a keyed step, or the sink."""

    step: str | None
    input: int


def inlets(flow: FlowPlan) -> dict[int, list[Inlet]]:
    """stream -> where its rows go into keyed steps, and the sink, if it is the last one."""
    found: dict[int, list[Inlet]] = {}
    for number, step in enumerate(flow.steps):
        if isinstance(step, KeyedStep):
            for input, stream in enumerate(flow.reads(number)):
                found.setdefault(stream, []).append(Inlet(step.id, input))
    found.setdefault(len(flow.sources) + len(flow.steps) - 1 if flow.steps else 0, []).append(
        Inlet(None, 0)
    )
    return found


def read_by(flow: FlowPlan) -> dict[str | None, tuple[int | str, ...]]:
    """Each keyed step, and the sink (None), with what it reads through stateless steps: sources by number,
    and keyed steps."""
    made: list[int | str] = list(range(len(flow.sources)))
    for number, step in enumerate(flow.steps):
        made.append(step.id if isinstance(step, KeyedStep) else made[flow.reads(number)[0]])
    return {**dict(flow.graph), None: (made[-1] if flow.steps else 0,)}


def timeless(flow: FlowPlan) -> set[int | str]:
    """Sources and keyed steps in which no event time passes."""
    found: set[int | str] = {n for n, source in enumerate(flow.sources) if source.time is None}
    for step, reads in flow.graph:
        if found.issuperset(reads):
            found.add(step)
    return found
