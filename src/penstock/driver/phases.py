"""The account of a trigger: where the time from its start to the start of the next one went.

An epoch ends when its slowest courier has ended. So the account follows one path through the processes: Spark
up to the callback, the driver, the task that ended last, the host that answered it last, back to the driver
and to Spark. Along this path each moment belongs to one phase. So the phases add up to the trigger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.spans import Span

PHASES = {
    "offsets": "Spark asks the sources how far they are",
    "offset log": "Spark writes the log of offsets",
    "planning": "Spark plans the epoch's query",
    "callback": "Spark calls Python, and whatever of the trigger it does not time itself",
    "prepare": "the driver makes the epoch's plan: routes, times, orders of control",
    "job start": "Spark plans the sink's write and starts a task",
    "JVM to Python": "from the start of the task until the courier's function runs",
    "courier start": "the courier reads its plan",
    "courier open": "the courier opens its channels",
    "courier read": "the courier waits for rows from the JVM",
    "courier combine": "the courier combines rows by key",
    "courier send": "the courier splits rows by host and writes them to channels",
    "courier report": "the courier reports to the driver",
    "wire": "from the courier's last byte until the host has read it, and the same for the answer",
    "host wait": "the host waits for its lock, for another channel, or for its turn",
    "host apply": "the host updates its state and makes the answer",
    "host delta": "the host takes its changes for the delta",
    "host answer": "the host writes the answer to the channel",
    "courier output": "the courier makes its output",
    "Python to JVM": "the JVM takes the output",
    "sink": "Spark's sink, until its tasks have ended; all of the batch in a query without couriers",
    "job end": "from the end of the tasks until the sink's write has returned to the driver",
    "host write delta": "the host that is last writes its delta, after the sink has the output",
    "seal": "the driver asks hosts whether they have written their deltas",
    "manifest": "the driver writes the manifest",
    "failed run": "runs of the epoch that had to be repeated",
    "after": "the driver's upkeep, control and progress",
    "return": "from the end of the callback until Spark begins its next log write",
    "commit log": "Spark writes the log of commits",
    "between": "from the end of the trigger to the start of the next: Spark's own, or waiting for it",
}
"""Phase of a trigger -> what happens in it. In the order of the account."""

PATH = "trigger"
"""Process of the spans of a path."""
_BEFORE = {"latestOffset": "offsets", "walCommit": "offset log"}
"""Spark's name of a duration before the query is planned -> phase. In the order in which they happen."""
_PLANNING = ("getBatch", "queryPlanning")
_COURIER = {"hand over": "Python to JVM", "output": "courier output", "answer": "wire"}
"""Name of a courier's span -> phase, where that is not "courier" and the name."""
_HOST = ("receive", "wait", "apply", "delta", "answer")


@dataclass(frozen=True)
class SparkTrigger:
    """Spark's own times of one trigger."""

    epoch: int
    started_ms: float
    """Start in milliseconds since 1970."""
    durations_ms: Mapping[str, float]
    """Spark's `durationMs`: name -> milliseconds."""
    tasks: Sequence[Span] = ()
    """The tasks of the sink's job, by the JVM's clock; `channel` is the partition. Empty if unknown."""

    @property
    def ended_ms(self) -> float:
        return self.started_ms + self.durations_ms.get("triggerExecution", 0.0)


@dataclass
class _Path:
    """Phases by their ends: each lasts from the end of the one before."""

    epoch: int
    now_ms: float
    until_ms: float
    """End of the account. No phase goes beyond it."""
    steps: list[Span] = field(default_factory=list)

    def to(self, phase: str, end_ms: float) -> None:
        """This phase lasts until `end_ms`. An end that has passed is ignored."""
        end_ms = min(max(end_ms, self.now_ms), self.until_ms)
        if end_ms > self.now_ms:
            self.steps.append(Span(self.epoch, PATH, phase, self.now_ms, end_ms - self.now_ms))
        self.now_ms = end_ms


def summed(path: Iterable[Span]) -> dict[str, float]:
    """Phase -> milliseconds of a path, in the order of `PHASES`."""
    took_ms: dict[str, float] = {}
    for step in path:
        took_ms[step.name] = took_ms.get(step.name, 0.0) + step.took_ms
    return {phase: round(took_ms[phase], 3) for phase in PHASES if phase in took_ms}


def path_of(
    spans: Iterable[Span], trigger: SparkTrigger, next_ms: float | None = None
) -> list[Span]:
    """The phases of one trigger, one after the other. `spans` are those of its epoch.

    The path ends at the next trigger's start `next_ms`, or at the trigger's own end.

    >>> took = {"latestOffset": 1, "walCommit": 5, "addBatch": 20, "commitOffsets": 4, "triggerExecution": 31}
    >>> driver = [Span(3, "driver", "prepare", 110.0, 2.0), Span(3, "driver", "write", 112.0, 10.0)]
    >>> summed(path_of(driver, SparkTrigger(3, 100.0, took), next_ms=133.0))
    {'offsets': 1.0, 'offset log': 5.0, 'callback': 4.0, 'prepare': 2.0, 'job end': 10.0, \
'return': 5.0, 'commit log': 4.0, 'between': 2.0}
    """
    mine = [span for span in spans if span.epoch == trigger.epoch]
    driver = sorted((s for s in mine if s.where == "driver"), key=lambda s: s.start_ms)
    durations = trigger.durations_ms
    until_ms = trigger.ended_ms if next_ms is None else next_ms
    path = _Path(trigger.epoch, trigger.started_ms, until_ms)
    for name, phase in _BEFORE.items():
        path.to(phase, path.now_ms + durations.get(name, 0.0))
    path.to("planning", path.now_ms + sum(durations.get(name, 0.0) for name in _PLANNING))
    if driver:
        path.to("callback", driver[0].start_ms)
    else:
        path.to("sink", path.now_ms + durations.get("addBatch", 0.0))
    for span in driver:
        if span.name == "write":
            _follow(path, mine, trigger.tasks, span)
        elif span.name == "seal":
            _seal(path, mine, span)
        else:
            path.to(span.name, span.end_ms)
    path.to("return", trigger.ended_ms - durations.get("commitOffsets", 0.0))
    path.to("commit log", trigger.ended_ms)
    path.to("between", path.until_ms)
    return path.steps


def _follow(path: _Path, spans: Sequence[Span], tasks: Sequence[Span], write: Span) -> None:
    """Follow the sink's write through the courier that ended last."""
    inside = [s for s in spans if write.start_ms <= s.start_ms < write.end_ms]
    couriers: dict[str, list[Span]] = {}
    for span in sorted(inside, key=lambda s: s.start_ms):
        if span.where.startswith("courier"):
            couriers.setdefault(span.where, []).append(span)
    if couriers:
        last = max(couriers, key=lambda where: couriers[where][-1].end_ms)
        number = int(last.rpartition(" ")[2])
        ran = sorted((t for t in tasks if t.end_ms >= write.start_ms), key=lambda t: t.start_ms)
        task = next((t for t in ran if t.channel == number), None)
        hosts = [s for s in inside if s.where.startswith("host") and s.channel == number]
        began_ms = couriers[last][0].start_ms
        # Spark's times are whole milliseconds.
        path.to("job start", began_ms if task is None else min(began_ms, task.start_ms))
        path.to("JVM to Python", began_ms)
        for span in couriers[last]:
            if span.name == "answer":
                _ask(path, hosts, span)
            path.to(_COURIER.get(span.name, f"courier {span.name}"), span.end_ms)
        # A sink may run more jobs. Without Spark's tasks, the end of the job is the sink's too.
        path.to("sink", min(max((t.end_ms for t in ran), default=write.end_ms), write.end_ms))
    path.to("job end", write.end_ms)


def _seal(path: _Path, spans: Iterable[Span], seal: Span) -> None:
    """Follow the driver's wait for hosts through the one that wrote its delta last. Most deltas are written
    while the sink still works, which takes nothing of the trigger."""
    writes = [s for s in spans if s.name == "write delta" and s.where.startswith("host")]
    last = max(writes, key=lambda span: span.end_ms, default=None)
    if last is not None and last.end_ms > seal.start_ms:
        path.to("seal", min(last.start_ms, seal.end_ms))
        path.to("host write delta", min(last.end_ms, seal.end_ms))
    path.to("seal", seal.end_ms)


def _ask(path: _Path, hosts: Iterable[Span], answer: Span) -> None:
    """Follow a courier's wait for its answers through the host that answered last."""
    at_work = [
        laps
        for laps in _channels(hosts)
        if laps[0].start_ms < answer.end_ms and laps[-1].end_ms > answer.start_ms
    ]
    if not at_work:
        return
    for span in max(at_work, key=lambda laps: laps[-1].end_ms):
        # What the host received before is on the courier's own account. And the host may notice that its
        # answer is written after the courier has read it.
        phase = "wire" if span.name == "receive" else f"host {span.name}"
        path.to(phase, min(span.end_ms, answer.end_ms))


def _channels(hosts: Iterable[Span]) -> Iterator[list[Span]]:
    """The spans of one channel on each host, in order."""
    channels: dict[str, list[Span]] = {}
    for span in hosts:
        if span.name in _HOST:
            channels.setdefault(span.where, []).append(span)
    for laps in channels.values():
        yield sorted(laps, key=lambda span: span.start_ms)
