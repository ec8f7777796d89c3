"""Points: the named places where a test may let a process fail, or a trial may slow it down.

The code calls `point` where a crash would be most unkind (`FAULT_POINTS`): between two writes, after a
channel was applied and before it was answered, while slots change hands. It calls `point` as well
where a trial changes what a process does without harming it (`TRIAL_POINTS`); `penstock.testing` has
the actions for that. A point costs one look at a global as long as nothing is armed. A test arms
faults for its own process with `armed`, or ships them to the other processes of a flow in
`Settings.faults`, where `arm` takes them.

>>> with armed(Fault("driver.sealed", where={"epoch": 3})) as faults:
...     _ = point("driver.sealed", epoch=2, run=0)
...     try:
...         _ = point("driver.sealed", epoch=3, run=0)
...     except InjectedFault as fault:
...         print(fault)
fault injected at driver.sealed (epoch=3, run=0)
>>> [passed.point for passed in faults.fired], faults.passed["driver.sealed"]
(['driver.sealed'], 2)
>>> point("driver.sealed", epoch=3, run=0)
0.0
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from penstock.errors import SettingError


@dataclass(frozen=True)
class FaultPoint:
    """A documented place: when it is passed, and what an action learns of the passing."""

    when: str
    where: tuple[str, ...]
    """The facts by which a fault picks passings."""
    hands: tuple[str, ...] = ()
    """What an action works with beside these facts."""


_CHANNEL = ("host", "step", "epoch", "run", "partition", "attempt")
_HOST = ("host", "step")
_RUN = ("epoch", "run")
_READING = ("epoch", "run", "partition", "attempt")
_TASK = ("step", *_READING)

FAULT_POINTS: dict[str, FaultPoint] = {
    "host.assign": FaultPoint("a host was told which slots it owns, and has not taken them", _HOST),
    "host.channel": FaultPoint("a channel's input is complete, and not yet applied", _CHANNEL),
    "host.applied": FaultPoint("a channel was applied, and its answer has not left", _CHANNEL),
    "host.fetch": FaultPoint("a host is about to ask for entries that it lacks", _HOST),
    "host.fetched": FaultPoint("missing entries came, and are not in the table yet", _HOST),
    "host.serve": FaultPoint("a host is asked for entries of slots that it gave away", _HOST),
    "host.install": FaultPoint("whole slots came, and are not in the table yet", _HOST),
    "host.trickle": FaultPoint("a piece of a slot is about to be brought in the background", _HOST),
    "host.seal": FaultPoint("an epoch is complete, and its delta not yet written", (*_HOST, *_RUN)),
    "host.sealed": FaultPoint("a delta was written, and the driver not yet told", (*_HOST, *_RUN)),
    "host.compact": FaultPoint("a file of a compaction is about to be read or written", _HOST),
    "driver.assign": FaultPoint("slots were given owners, and no host was told yet", _RUN),
    "driver.written": FaultPoint("the sink has the output, and nothing was sealed", _RUN),
    "driver.sealed": FaultPoint("all hosts have sealed, and there is no manifest", _RUN),
    "driver.committed": FaultPoint("the manifest is written, and Spark not yet told", _RUN),
    "driver.layout": FaultPoint("a layout was written, and no manifest names it", ("version",)),
    "driver.clean": FaultPoint("files that no kept version needs are about to go", ("version",)),
    "sink.merge": FaultPoint("a merge of epochs is about to change a folder", ("operation",)),
    "courier.read": FaultPoint(
        "a courier was given a batch of its input, and has done nothing with it", _READING
    ),
    "courier.sent": FaultPoint("all rows of a step are sent, and no channel was closed", _TASK),
    "courier.closed": FaultPoint("a step's answers came, and were not handed on", _TASK),
    "store.write": FaultPoint("a file is about to be written", ("file",)),
    "store.read": FaultPoint("a file or folder is about to be read or looked for", ("file",)),
    "courier.offload": FaultPoint("rows are set aside, and no burst worker was asked yet", _TASK),
    "courier.offloaded": FaultPoint("burst workers gave answers, and none was sent on", _TASK),
}
"""Every place for a failure, by name. Points of a host and of a step name them; so a fault can pick one."""

_LIVE = ("epoch", "run", "partition")
"""Of a live courier: its number is the partition."""

LIVE_POINTS: dict[str, FaultPoint] = {
    "host.round": FaultPoint(
        "rows of a live run were applied, and its answers have not left", (*_HOST, *_RUN)
    ),
    "driver.begin": FaultPoint("hosts have joined a live run, and no courier has begun it", _RUN),
    "driver.message": FaultPoint("a control message has its number, and no courier has it", _RUN),
    "driver.told": FaultPoint("all couriers have a control message", _RUN),
    "courier.polled": FaultPoint("a live courier has polled rows, and sent none of them", _LIVE),
    "courier.message": FaultPoint(
        "a live courier is about to put a control message between the chunks of a step",
        ("step", *_LIVE),
    ),
    "courier.messaged": FaultPoint(
        "a live courier has sent a control message to the hosts of a step", ("step", *_LIVE)
    ),
    "courier.flushed": FaultPoint(
        "all output of an epoch has left a live courier, and the driver was not told", _LIVE
    ),
    "courier.release": FaultPoint(
        "an epoch is durable, and a live courier has not delivered its rows", _LIVE
    ),
    "courier.released": FaultPoint(
        "rows of a durable epoch are delivered, and still in the outbox of a live courier", _LIVE
    ),
}
"""Places for a failure that only live flows pass. They pass `courier.sent` after each chunk,
`courier.offload` when rows of one are set aside, `courier.offloaded` before what was made of some is sent."""

_WORK = ("records", "took_s")
"""Records that were worked on, and the seconds that this took."""

TRIAL_POINTS: dict[str, FaultPoint] = {
    "driver.clock": FaultPoint(
        "the driver asks what time it is. The action gives the seconds by which its clock is ahead",
        (),
    ),
    "driver.host": FaultPoint(
        "a host was asked for, and its Spark job has not begun; `until` is set if it is called off",
        _HOST,
        ("until",),
    ),
    "host.work": FaultPoint(
        "a channel was applied; `until` is set when the host ends. The action gives the seconds of "
        "work that it stands for",
        _CHANNEL,
        (*_WORK, "until"),
    ),
    "courier.work": FaultPoint("a stateless step has done a batch", ("step",), _WORK),
    "courier.sender": FaultPoint("a courier has its sender, and no rows yet", _TASK, ("sender",)),
    "burst.work": FaultPoint("a local burst worker has done a request", (), _WORK),
}
"""Every place for a trial's action, by name."""

Action = Callable[[Mapping[str, Any]], float | None]
"""A function of what a point tells and hands over. It may give seconds; see `point`."""
Do = Literal["raise", "kill", "stop", "hang"] | type[Exception] | Action


class InjectedFault(BaseException):
    """What a fault raises.

    Not an `Exception`: code that handles errors (a row to be set aside, a write to be tried again,
    an epoch to be run once more) must see a fault as little as it sees the death of its process.
    In a Flight handler it breaks the call off, so that the caller takes the host for lost.
    """

    def __init__(self, point: str, where: Mapping[str, object]) -> None:
        self.point, self.where = point, dict(where)
        super().__init__(f"fault injected at {Passed(point, self.where)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (InjectedFault, (self.point, self.where))


@dataclass(frozen=True)
class Passed:
    """One passing of a point."""

    point: str
    where: Mapping[str, object]
    hands: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.where.items())
        return f"{self.point} ({facts})"


@dataclass(frozen=True)
class Fault:
    """What shall happen at a point. A value: it can be pickled, and shipped in settings.

    `do` is "raise" (an `InjectedFault`), "kill" (SIGKILL for the own process), "stop" (SIGSTOP for it; it
    goes on from there if somebody continues it), "hang" (wait until disarmed, then raise), a kind of
    exception to raise (OSError: the store refuses), or an action: a function of what the point tells.
    `where` picks passings by their facts, `hits` by their number among those, counted from 1 in every
    process anew; no hits means all. A host that a fault has killed is started again and counts from 1
    again: pick a `run` to kill it only once.

    >>> Fault("host.aplied")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: there is no fault point 'host.aplied'. What to do: use host.applied?
    """

    point: str
    do: Do = "raise"
    where: Mapping[str, object] = field(default_factory=dict)
    hits: Collection[int] = (1,)

    def __post_init__(self) -> None:
        known = _known(self.point)
        if unknown := set(self.where) - set(known.where):
            raise SettingError(
                f"point {self.point} does not tell its {', '.join(sorted(unknown))}",
                hint=f"it tells {', '.join(known.where)}",
            )
        if isinstance(self.do, str) and self.do not in ("raise", "kill", "stop", "hang"):
            raise SettingError(
                f"a fault cannot do {self.do!r}", hint='use "raise", "kill", "stop" or "hang"'
            )

    def meets(self, passed: Passed) -> bool:
        """Whether a passing is one of those that this fault counts."""
        return self.point == passed.point and all(
            name in passed.where and passed.where[name] == value
            for name, value in self.where.items()
        )


class Armed:
    """Faults that lie in wait in this process. Safe to pass from several threads."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        self.passed: Counter[str] = Counter()
        """How often each point was passed."""
        self.fired: list[Passed] = []
        """The passings that a fault met, in order."""
        self._hits = [0] * len(self.faults)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def meet(self, passed: Passed) -> float:
        """Count a passing, and let the first fault happen that is due at it; gives its seconds."""
        with self._lock:
            self.passed[passed.point] += 1
            due = None
            for number, fault in enumerate(self.faults):
                if fault.meets(passed):
                    self._hits[number] += 1
                    if due is None and (not fault.hits or self._hits[number] in fault.hits):
                        due = fault
            if due is not None:
                self.fired.append(Passed(passed.point, passed.where))
        return 0.0 if due is None else self._happen(due.do, passed)

    def end(self) -> None:
        """Let go of whatever hangs."""
        self._over.set()

    def _happen(self, do: Do, passed: Passed) -> float:
        if isinstance(do, type):
            raise do(f"fault injected at {passed}")
        if callable(do):
            return do({**passed.where, **passed.hands}) or 0.0
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return 0.0
        if do == "hang":
            self._over.wait()
        raise InjectedFault(passed.point, passed.where)


_armed: tuple[Armed, ...] = ()
_shipped = Armed(())
_arming = threading.Lock()


def point(name: str, **facts: object) -> float:
    """Pass a point. Does nothing, unless faults are armed in this process.

    Gives the seconds of work that actions stand for: 0, unless a trial slows the process down.
    """
    return _passed(name, facts) if _armed else 0.0


def _passed(name: str, facts: dict[str, object]) -> float:
    hands = {hand: facts.pop(hand) for hand in _known(name).hands}
    return sum(here.meet(Passed(name, facts, hands)) for here in _armed)


@contextmanager
def armed(*faults: Fault) -> Iterator[Armed]:
    """Arm faults in this process, for a while; gives what was passed and what has fired."""
    here = Armed(faults)
    _replace(None, here)
    try:
        yield here
    finally:
        _replace(here, None)
        here.end()


def arm(faults: tuple[Fault, ...]) -> None:
    """Arm the faults that a process was shipped, instead of those it was shipped before.

    Called at every task of a worker, since Spark keeps workers for the next query: the same faults
    again are left as they are, with their counts.
    """
    global _shipped
    if faults != _shipped.faults:
        fresh = Armed(faults)
        _replace(_shipped, fresh if faults else None)
        _shipped.end()
        _shipped = fresh


def _replace(old: Armed | None, new: Armed | None) -> None:
    global _armed
    with _arming:
        kept = tuple(one for one in _armed if one is not old)
        _armed = kept if new is None else (*kept, new)


def _known(name: str) -> FaultPoint:
    known = {**FAULT_POINTS, **LIVE_POINTS, **TRIAL_POINTS}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"use {near[0]}?" if near else f"they are {', '.join(known)}"
        raise SettingError(f"there is no fault point {name!r}", hint=hint)
    return known[name]
