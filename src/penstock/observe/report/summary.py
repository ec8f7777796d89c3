"""The summary of a recorded run: what ran, whether the SLA was kept, hosts, moves, faults, money. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.control.money import Money
from penstock.model import SLA
from penstock.observe.bounds import kind_of
from penstock.observe.moment import MovesMoment
from penstock.observe.recording import FlowFacts, Recording, tally_of
from penstock.observe.sentences import Told, span, story
from penstock.observe.tally import BoundTally, Tally

_DECISIONS = 5
_GAP_S = 60.0
"""Seconds that a recording may lack without a word."""
_WEIGHTS = {
    "host lost": 6, "failed": 6, "hot key": 5, "split": 5, "decided": 4, "host leaves": 3, "offload": 3,
    "setting": 2, "couriers": 1,
}  # fmt: skip
"""How much a kind of event matters; others 0."""


@dataclass(frozen=True)
class Latencies:
    """Latency of a run, in milliseconds."""

    mean_ms: float
    """Average over all rows."""
    worst_ms: float
    """Highest average of one second."""
    worst_at_ms: float
    """End of that second, in milliseconds since 1970."""
    p99_ms: float
    """99th percentile of that second's rows."""


@dataclass(frozen=True)
class Summary:
    """A recorded run in figures."""

    facts: FlowFacts
    state: str
    """State at the end: "running", "stopped", "finished" or "failed"."""
    message: str
    """The state in words, or the error."""
    begun_ms: float
    """Begin of what is recorded, in milliseconds since 1970."""
    seconds: float
    """From there to the end."""
    missing: float
    """Seconds of these that are not recorded."""
    rows: int
    epochs: int
    most_rate: float
    """Highest input of one second, in rows per second."""
    sla: SLA | None
    """The SLA at the end; None if there was none."""
    bounds: tuple[BoundTally, ...]
    """All bounds of that SLA, each with its windows."""
    windows: int
    """Windows of its first bound on the whole flow."""
    kept: int
    latency: Latencies | None
    """None if no row came out."""
    hosts: float
    """Number of hosts on average over time."""
    most_hosts: int
    functions: int
    """Most functions at one time."""
    policy: str | None
    moved_slots: int
    """Slots that got another host, other than at the start."""
    moves: MovesMoment
    """What moves have cost."""
    lost: int
    """Hosts that were lost."""
    runs_again: int
    """Runs of epochs beyond the first one of each."""
    late_rows: int
    dead_letters: int
    money: Money | None
    """Cost of the recorded time."""
    decisions: tuple[Told, ...] = field(default=())
    """The most important decisions and events, in order of time."""

    @property
    def success(self) -> float | None:
        """Share of the first bound's windows in which it was kept; None if none ended."""
        return self.kept / self.windows if self.windows else None

    @property
    def static_money(self) -> float:
        """Cost in US dollars of as many hosts as there were at the peak, for the whole run."""
        return self.facts.host_price.money(self.most_hosts * self.seconds)

    def sentences(self) -> dict[str, str]:
        """The summary in words: a heading -> one or two sentences."""
        said = {
            "Run": self._run(),
            **self._slas(),
            "Hosts": self._hosts(),
            "Moves": self._moves(),
            "Faults": self._faults(),
            "Cost": self._cost(),
        }
        return {heading: text for heading, text in said.items() if text}

    def _run(self) -> str:
        mode = "live" if self.facts.mode == "live" else "in micro-batches"
        failed = f" It failed: {self.message}." if self.state == "failed" else ""
        rate = self.rows / self.seconds if self.seconds else 0.0
        rows, epochs = _counted(self.rows, "row"), _counted(self.epochs, "epoch")
        return (
            f"{self.facts.name} ran {mode} for {span(1000 * self.seconds)} from "
            f"{clock(self.begun_ms)} UTC on: {rows} in {epochs}, "
            f"{rate:,.0f} rows/s on average and {self.most_rate:,.0f} rows/s at most."
            f"{self._left_out()}{failed}"
        )

    def _left_out(self) -> str:
        """What a reader may miss: the time before the recording, and gaps in it."""
        before_ms, said = self.begun_ms - self.facts.started_ms, ""
        if before_ms > 1000 * _GAP_S:
            said = f" It had begun {span(before_ms)} earlier, which is not recorded any more."
        if self.missing > _GAP_S:
            said += f" {span(1000 * self.missing)} of it are not recorded."
        return said

    def _slas(self) -> dict[str, str]:
        """What is said of the first bound, and a row for each further one."""
        rows = {"SLA": self._sla(self.bounds[0] if self.bounds else None)}
        for number, tally in enumerate(self.bounds[1:], 2):
            rows[f"SLA {number}"] = f"{_goal(tally)} {_worst(tally, self.policy)}"
        return rows

    def _sla(self, first: BoundTally | None) -> str:
        at = self.latency
        if at is None:
            return "No row came out, so there is no latency."
        worst = (
            f"The worst second ended at {clock(at.worst_at_ms)}, with {span(at.worst_ms)} on average "
            f"and a p99 of {span(at.p99_ms)}."
        )
        goal = "No SLA." if first is None else _goal(first)
        if first is not None and (first.newest.p99 or first.newest.step is not None):
            goal += f" {_worst(first, self.policy)}"
        return f"{goal} Rows took {span(at.mean_ms)} on average. {worst}"

    def _hosts(self) -> str:
        if not self.facts.slots:
            return ""
        scaled = (
            "autoscaling was off" if self.policy is None else f"scaled by the policy {self.policy}"
        )
        functions = f", and {self.functions:,} functions at most" if self.functions else ""
        return f"{self.hosts:.1f} on average, {self.most_hosts:,} at most{functions}; {scaled}."

    def _moves(self) -> str:
        moves = self.moves
        if not self.moved_slots:
            return ""
        return (
            f"{_counted(self.moved_slots, 'slot')} went to another host. {moves.fetched_keys:,} entries "
            f"({_size(moves.fetched_bytes)}) followed them, rows waited {span(moves.wait_ms)} for that "
            f"in all, and {moves.left_behind:,} entries were never asked for and did not move."
        )

    def _faults(self) -> str:
        counts = {
            "host lost": self.lost,
            "epoch run again": self.runs_again,
            "row set aside because it failed": self.dead_letters,
            "row behind the watermark": self.late_rows,
        }
        said = [_counted(count, what) for what, count in counts.items() if count]
        return f"{', '.join(said)}." if said else "None."

    def _cost(self) -> str:
        if self.money is None or not self.static_money:
            return ""
        saved = 1 - self.money.total / self.static_money
        against = f"{abs(100 * saved):.0f} % {'less' if saved >= 0 else 'more'}"
        return (
            f"{self.money.total:.4f} USD (hosts {self.money.hosts:.4f}, functions "
            f"{self.money.functions:.4f}): {against} than {self.most_hosts:,} hosts for the peak, all the "
            f"time, at {self.static_money:.4f} USD."
        )


def summary(recording: Recording) -> Summary:
    """The summary of a recording so far. A recording without a moment has zeros."""
    facts, entries, tally = recording.facts, recording.entries(), tally_of(recording)
    last = tally.last
    seconds = (tally.ended_ms - tally.begun_ms) / 1000
    lost = sum(entry.event == "host lost" for entry in entries)
    return Summary(
        facts=facts,
        state="unknown" if last is None else last.state,
        message="" if last is None else last.message,
        begun_ms=facts.started_ms if last is None else tally.begun_ms,
        seconds=round(seconds, 3),
        missing=round(max(seconds - tally.seconds, 0.0), 3),
        rows=tally.rows,
        epochs=tally.epochs,
        most_rate=tally.most_rate,
        sla=tally.sla,
        bounds=_bounds(tally),
        windows=tally.windows,
        kept=tally.kept,
        latency=_latencies(tally),
        hosts=tally.hosts,
        most_hosts=tally.most_hosts,
        functions=tally.functions,
        policy=None if last is None else last.policy,
        moved_slots=tally.moved_slots,
        moves=tally.moves,
        lost=max(lost, tally.lost),
        runs_again=tally.runs_again,
        late_rows=tally.late_rows,
        dead_letters=tally.dead_letters,
        money=tally.money,
        decisions=most_important(story(entries)),
    )


def _bounds(tally: Tally) -> tuple[BoundTally, ...]:
    """The bounds of the SLA at the end. One that was taken back does not count."""
    wanted = () if tally.sla is None else tally.sla.bounds
    found = (tally.bounds.get((kind_of(bound), bound.step)) for bound in wanted)
    return tuple(one for one in found if one is not None)


def _goal(tally: BoundTally) -> str:
    """What a bound asks for, and how often it got it."""
    bound, kept = tally.newest, "No window has ended"
    if tally.success is not None:
        kept = f"Kept in {100 * tally.success:.1f} % of {tally.windows:,} windows"
    return f"{kept}: {bound.what} of at most {span(bound.latency_ms)} over {span(bound.window_ms)}."


def _worst(tally: BoundTally, policy: str | None) -> str:
    bound = tally.newest
    if tally.worst_ms is None:
        why = ": autoscaling was off" if bound.step is not None and policy is None else ""
        return f"The {bound.what} was not measured{why}."
    about = "about " if bound.p99 and bound.step is not None else ""
    return (
        f"The highest {bound.what} was {about}{span(tally.worst_ms)}, in the second that ended at "
        f"{clock(tally.worst_at_ms)}."
    )


def most_important(told: Sequence[Told], most: int = _DECISIONS) -> tuple[Told, ...]:
    """The most important events, in order of time. Each kind has its first before any has its second."""
    turns: Counter[str] = Counter()
    ranked = []
    for item in told:
        if item.important:
            ranked.append((turns[item.kind], -_WEIGHTS.get(item.kind, 0), item))
            turns[item.kind] += 1
    chosen = sorted(ranked, key=lambda each: each[:2])[:most]
    return tuple(sorted((item for *_, item in chosen), key=lambda item: item.time_ms))


def clock(time_ms: float) -> str:
    """The time of day in UTC.

    >>> clock(1_750_000_000_250.0)
    '15:06:40'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S")


def _latencies(tally: Tally) -> Latencies | None:
    if tally.worst is None or tally.worst.latency is None:
        return None
    worst = tally.worst.latency
    return Latencies(tally.mean_ms, worst.mean_ms, tally.worst.time_ms, worst.p99_ms)


def _counted(count: int, what: str) -> str:
    first, *rest = what.split(" ", 1)
    return " ".join([f"{count:,} {first}{'s' * (count != 1)}", *rest])


def _size(size: float) -> str:
    """Bytes as text.

    >>> _size(700), _size(4_200), _size(3.1e9)
    ('700 B', '4.2 kB', '3.1 GB')
    """
    for unit, bytes_each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_each:
            return f"{size / bytes_each:,.1f} {unit}"
    return f"{size:,.0f} B"
