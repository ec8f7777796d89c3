"""The summary of a recorded run: what ran, whether the SLA was kept, hosts, moves, faults, money. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from penstock.control.money import Money
from penstock.host.vitals import MovedState
from penstock.model import SLA
from penstock.observe.moment import Moment, MovesMoment
from penstock.observe.recording import FlowFacts, Recording
from penstock.observe.sentences import Told, span, story

_DECISIONS = 5
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
    seconds: float
    rows: int
    epochs: int
    most_rate: float
    """Highest input of one second, in rows per second."""
    sla: SLA | None
    """The SLA at the end; None if there was none."""
    windows: int
    kept: int
    latency: Latencies | None
    """None if no row came out."""
    hosts: float
    """Number of hosts on average over time."""
    most_hosts: int
    functions: int
    """Most functions at one time."""
    policy: str | None
    moves: MovesMoment
    """All handovers, and what they cost."""
    lost: int
    """Hosts that were lost."""
    runs_again: int
    """Runs of epochs beyond the first one of each."""
    late_rows: int
    dead_letters: int
    money: Money | None
    decisions: tuple[Told, ...] = field(default=())
    """The most important decisions and events, in order of time."""

    @property
    def success(self) -> float | None:
        """Share of the SLA's windows in which it was kept; None if none ended."""
        return self.kept / self.windows if self.windows else None

    @property
    def static_money(self) -> float:
        """Cost in US dollars of as many hosts as there were at the peak, for the whole run."""
        return self.facts.host_price.money(self.most_hosts * self.seconds)

    @property
    def moved_slots(self) -> int:
        return sum(len(handover.slots) for handover in self.moves.handovers)

    def sentences(self) -> dict[str, str]:
        """The summary in words: a heading -> one or two sentences."""
        said = {
            "Run": self._run(),
            "SLA": self._sla(),
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
            f"{clock(self.facts.started_ms)} UTC on: {rows} in {epochs}, "
            f"{rate:,.0f} rows/s on average and {self.most_rate:,.0f} rows/s at most.{failed}"
        )

    def _sla(self) -> str:
        at = self.latency
        if at is None:
            return "No row came out, so there is no latency."
        worst = (
            f"The worst second ended at {clock(at.worst_at_ms)}, with {span(at.worst_ms)} on average "
            f"and a p99 of {span(at.p99_ms)}."
        )
        goal = "No SLA."
        if self.sla is not None:
            kept = "No window has ended"
            if self.success is not None:
                kept = f"Kept in {100 * self.success:.1f} % of {self.windows:,} windows"
            bound, window = span(self.sla.latency_ms), span(self.sla.window_ms)
            goal = f"{kept}: average latency of at most {bound} over {window}."
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
        if not moves.handovers:
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
    facts, moments, entries = recording.facts, recording.moments(), recording.entries()
    last = moments[-1] if moments else None
    seconds = sum(moment.seconds for moment in moments)
    lost = sum(entry.event == "host lost" for entry in entries)
    handed_over = sum(
        any(handover.why == "host lost" for handover in moment.moves.handovers)
        for moment in moments
    )
    return Summary(
        facts=facts,
        state="unknown" if last is None else last.state,
        message="" if last is None else last.message,
        seconds=round(seconds, 3),
        rows=sum(moment.rows for moment in moments),
        epochs=sum(len(moment.epochs) for moment in moments),
        most_rate=max((moment.rate or 0.0 for moment in moments), default=0.0),
        sla=next((m.sla for m in reversed(moments) if m.sla is not None), None),
        windows=sum(moment.windows for moment in moments),
        kept=sum(moment.kept for moment in moments),
        latency=_latencies(moments),
        hosts=sum(m.hosts * m.seconds for m in moments) / seconds if seconds else 0.0,
        most_hosts=max((moment.hosts for moment in moments), default=0),
        functions=max((moment.functions for moment in moments), default=0),
        policy=None if last is None else last.policy,
        moves=_moves(moments),
        lost=max(lost, handed_over),
        runs_again=sum(epoch.runs - 1 for moment in moments for epoch in moment.epochs),
        late_rows=sum(moment.late_rows for moment in moments),
        dead_letters=sum(moment.dead_letters for moment in moments),
        money=next((m.money for m in reversed(moments) if m.money is not None), None),
        decisions=most_important(story(entries)),
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


def _latencies(moments: Sequence[Moment]) -> Latencies | None:
    known = [(m.latency, m.rows, m.time_ms) for m in moments if m.latency is not None and m.rows]
    if not known:
        return None
    worst, _, at_ms = max(known, key=lambda each: each[0].mean_ms)
    rows = sum(count for _, count, _ in known)
    mean_ms = sum(latency.mean_ms * count for latency, count, _ in known) / rows
    return Latencies(mean_ms, worst.mean_ms, at_ms, worst.p99_ms)


def _moves(moments: Sequence[Moment]) -> MovesMoment:
    """All moves but those of the start. Of entries left behind, the newest count is that of all."""
    handovers = tuple(h for m in moments for h in m.moves.handovers if h.why != "start")
    costs = {
        cost.name: sum(getattr(m.moves, cost.name) for m in moments) for cost in fields(MovedState)
    }
    with_epochs = [moment.moves for moment in moments if moment.epochs]
    costs["left_behind"] = with_epochs[-1].left_behind if with_epochs else 0
    return MovesMoment(handovers=handovers, **costs)


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
