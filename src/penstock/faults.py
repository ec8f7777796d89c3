"""Fault points: named places in the code where a test can make a process fail, or slow it down.

The code calls `point` where a crash would do the most harm (`FAULT_POINTS`): between two writes, between the
application of a channel and its answer, while slots move. It also calls `point` where a trial can change the
behaviour of a process without harm (`TRIAL_POINTS`); `penstock.testing` has actions for these. While nothing
is armed, a point only costs a check of a global variable. A test arms faults in its own process with `armed`.
It ships them to the other processes of a flow in `Settings.faults`, where `arm` arms them.

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
    """The description of a fault point: when the code passes it, and the facts of each pass."""

    when: str
    """The moment at which the code passes the point."""
    where: tuple[str, ...]
    """Names of the facts by which a fault selects passes."""
    hands: tuple[str, ...] = ()
    """Names of further values that the point passes to an action."""


_CHANNEL = ("host", "step", "epoch", "run", "partition", "attempt")
_HOST = ("host", "step")
_RUN = ("epoch", "run")
_READING = ("epoch", "run", "partition", "attempt")
_TASK = ("step", *_READING)

FAULT_POINTS: dict[str, FaultPoint] = {
    "host.assign": FaultPoint("a host has received its slots, and has not taken them over", _HOST),
    "host.channel": FaultPoint("a channel's input is complete, and not yet applied", _CHANNEL),
    "host.began": FaultPoint(
        "rows whose state is here were applied, and the rest of their channel was not", _CHANNEL
    ),
    "host.applied": FaultPoint("a channel was applied, and its answer has not left", _CHANNEL),
    "host.fetch": FaultPoint("a host is about to fetch entries that it lacks", _HOST),
    "host.fetched": FaultPoint("missing entries arrived, and are not in the table yet", _HOST),
    "host.serve": FaultPoint("a host is asked for entries of slots that it gave away", _HOST),
    "host.install": FaultPoint("whole slots arrived, and are not in the table yet", _HOST),
    "host.trickle": FaultPoint("a part of a slot is about to be fetched in the background", _HOST),
    "host.seal": FaultPoint("an epoch is complete, and its delta not yet written", (*_HOST, *_RUN)),
    "host.sealed": FaultPoint("a delta was written, and not yet reported", (*_HOST, *_RUN)),
    "host.confirm": FaultPoint(
        "a host has sealed while the sink works, and the driver does not know it yet",
        (*_HOST, *_RUN),
    ),
    "host.compact": FaultPoint("a file of a compaction is about to be read or written", _HOST),
    "driver.assign": FaultPoint("slots have owners, and no host has received them yet", _RUN),
    "driver.written": FaultPoint("the sink has the output, and the driver has not sealed", _RUN),
    "driver.sealed": FaultPoint("all hosts have sealed, and there is no manifest", _RUN),
    "driver.committed": FaultPoint("the manifest is written, and Spark has not committed", _RUN),
    "driver.layout": FaultPoint("a layout was written, and no manifest names it", ("version",)),
    "driver.clean": FaultPoint("files that no kept version needs will be removed", ("version",)),
    "sink.merge": FaultPoint("a merge of epochs is about to change a folder", ("operation",)),
    "courier.read": FaultPoint(
        "a courier has received a batch of its input, and has not processed it", _READING
    ),
    "courier.sent": FaultPoint("all rows of a step are sent, and no channel was closed", _TASK),
    "courier.closed": FaultPoint("a step's answers arrived, and were not passed on", _TASK),
    "store.write": FaultPoint("a file is about to be written", ("file",)),
    "store.read": FaultPoint("a file or folder is about to be read or looked for", ("file",)),
    "courier.offload": FaultPoint("rows are set aside, and no burst worker was called yet", _TASK),
    "courier.offloaded": FaultPoint("burst workers answered, and nothing was sent on", _TASK),
}
"""All fault points by name. Points of hosts and steps have their names as facts, so that a fault can select
one of them."""

HELP_POINTS: dict[str, FaultPoint] = {
    "host.help": FaultPoint("a host is asked to apply rows that another one owns", _CHANNEL),
    "host.helped": FaultPoint(
        "another host has applied rows, and their owner has not put the result into its table",
        _CHANNEL,
    ),
    "driver.help": FaultPoint("a host is about to learn which hosts can help it", _RUN),
}
"""Fault points that are passed only while hosts help each other in the middle of an epoch."""

_LIVE = ("epoch", "run", "partition")
"""Facts of a live courier. Its number is the partition."""

LIVE_POINTS: dict[str, FaultPoint] = {
    "host.round": FaultPoint(
        "rows of a live run were applied, and its answers have not left", (*_HOST, *_RUN)
    ),
    "driver.begin": FaultPoint("hosts have joined a live run, and no courier has begun it", _RUN),
    "driver.message": FaultPoint("a control message has its number, and no courier got it", _RUN),
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
        "all output of an epoch has left a live courier, and the driver does not know", _LIVE
    ),
    "courier.release": FaultPoint(
        "an epoch is durable, and a live courier has not delivered its rows", _LIVE
    ),
    "courier.released": FaultPoint(
        "rows of a durable epoch are delivered, and still in the outbox of a live courier", _LIVE
    ),
}
"""Fault points of live flows only. Live flows also pass `courier.sent` after each chunk, `courier.offload`
when rows of a chunk are set aside, and `courier.offloaded` before the result of burst workers is sent."""

_WORK = ("records", "took_s")
"""The number of processed records, and the seconds that this took."""

TRIAL_POINTS: dict[str, FaultPoint] = {
    "driver.clock": FaultPoint(
        "the driver reads its clock. The action returns the seconds by which the clock is ahead",
        (),
    ),
    "driver.host": FaultPoint(
        "a host was requested, and its Spark job has not begun; `until` is set if it is cancelled",
        _HOST,
        ("until",),
    ),
    "host.work": FaultPoint(
        "a channel, or a piece of one, was applied; `until` is set when the host ends. The action "
        "returns the seconds of work that it stands for",
        _CHANNEL,
        (*_WORK, "until"),
    ),
    "courier.work": FaultPoint("a stateless step has processed a batch", ("step",), _WORK),
    "courier.sender": FaultPoint("a courier has its sender, and no rows yet", _TASK, ("sender",)),
    "burst.work": FaultPoint("a local burst worker has processed a request", (), _WORK),
}
"""All points for actions of a trial, by name."""

Action = Callable[[Mapping[str, Any]], float | None]
"""A function of the facts and values of a point. It may return seconds; see `point`."""
Do = Literal["raise", "kill", "stop", "hang"] | type[Exception] | Action


class InjectedFault(BaseException):
    """The exception that a fault raises.

    It is not an `Exception`, because code that handles errors (sets a row aside, retries a write, runs an
    epoch again) must not catch it, as it cannot catch the death of its process. In a Flight handler it
    breaks the call, so that the caller considers the host lost.
    """

    def __init__(self, point: str, where: Mapping[str, object]) -> None:
        self.point, self.where = point, dict(where)
        super().__init__(f"fault injected at {Passed(point, self.where)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (InjectedFault, (self.point, self.where))


@dataclass(frozen=True)
class Passed:
    """One pass of the code through a point, with its facts."""

    point: str
    where: Mapping[str, object]
    hands: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.where.items())
        return f"{self.point} ({facts})"


@dataclass(frozen=True)
class Fault:
    """A fault to inject at a point. It is a value that can be pickled and shipped in settings.

    `do` is one of these:

    - "raise": raise an `InjectedFault`;
    - "kill": send SIGKILL to the process that passes the point;
    - "stop": send SIGSTOP to it; SIGCONT lets it continue;
    - "hang": wait until the fault is disarmed, then raise;
    - an exception class to raise, such as OSError for a store that fails;
    - an action: a function of the facts of the point.

    `where` selects passes by their facts. `hits` selects them by their number, counted from 1 in each
    process; an empty `hits` selects all. A host that was killed restarts, and counts from 1 again. Put `run`
    into `where` to kill it only once.

    >>> Fault("host.aplied")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: unknown fault point 'host.aplied'. What to do: use host.applied
    """

    point: str
    do: Do = "raise"
    where: Mapping[str, object] = field(default_factory=dict)
    hits: Collection[int] = (1,)

    def __post_init__(self) -> None:
        known = _known(self.point)
        if unknown := set(self.where) - set(known.where):
            raise SettingError(
                f"fault point {self.point} has no {', '.join(sorted(unknown))} for `where`",
                hint=f"use {', '.join(known.where) or 'no facts'}",
            )
        if isinstance(self.do, str) and self.do not in ("raise", "kill", "stop", "hang"):
            raise SettingError(
                f"a fault cannot do {self.do!r}", hint='use "raise", "kill", "stop" or "hang"'
            )

    def meets(self, passed: Passed) -> bool:
        """Whether this fault counts a pass: its point and its facts match."""
        return self.point == passed.point and all(
            name in passed.where and passed.where[name] == value
            for name, value in self.where.items()
        )


class Armed:
    """Faults that are armed in this process. Thread-safe."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        self.passed: Counter[str] = Counter()
        """Number of passes of each point."""
        self.fired: list[Passed] = []
        """Passes at which a fault was injected, in order."""
        self._hits = [0] * len(self.faults)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def meet(self, passed: Passed) -> float:
        """Count a pass, and inject the first fault that is due. Returns the seconds of its action."""
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
        """Disarm the faults, which ends those that hang."""
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
    """Pass a point. Does nothing unless faults are armed in this process.

    Returns the seconds of work that actions stand for: 0 unless a trial slows the process down.
    """
    return _passed(name, facts) if _armed else 0.0


def _passed(name: str, facts: dict[str, object]) -> float:
    hands = {hand: facts.pop(hand) for hand in _known(name).hands}
    return sum(here.meet(Passed(name, facts, hands)) for here in _armed)


@contextmanager
def armed(*faults: Fault) -> Iterator[Armed]:
    """Arm faults in this process for the duration of the context. Yields a record of passes and faults."""
    here = Armed(faults)
    _replace(None, here)
    try:
        yield here
    finally:
        _replace(here, None)
        here.end()


def arm(faults: tuple[Fault, ...]) -> None:
    """Arm the faults that were shipped to this process, in place of those shipped before.

    Called for every task of a worker, since Spark reuses workers for the next query. If the faults are the
    same as before, they keep their counts.
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
        kept = tuple(faults for faults in _armed if faults is not old)
        _armed = kept if new is None else (*kept, new)


def _known(name: str) -> FaultPoint:
    known = {**FAULT_POINTS, **HELP_POINTS, **LIVE_POINTS, **TRIAL_POINTS}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"use {near[0]}" if near else f"use one of {', '.join(known)}"
        raise SettingError(f"unknown fault point {name!r}", hint=hint)
    return known[name]
