"""A run added up, moment by moment, in little memory however long it was. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from penstock.control.money import Money
from penstock.host.vitals import MovedState
from penstock.model import SLA
from penstock.observe.bounds import BoundMoment
from penstock.observe.moment import Moment, MovesMoment

_FROM_THE_START_MS = 5_000.0
"""A recording that begins within so many milliseconds after the query has all that it cost."""


@dataclass
class BoundTally:
    """One bound of the SLA over a run."""

    newest: BoundMoment
    """The bound as it was at the end."""
    windows: int = 0
    kept: int = 0
    worst_ms: float | None = None
    """Its highest figure of one moment; None if it was never known."""
    worst_at_ms: float = 0.0

    @property
    def success(self) -> float | None:
        """Share of the windows in which the bound was kept; None if none ended."""
        return self.kept / self.windows if self.windows else None


@dataclass
class Tally:
    """The sums, peaks and averages of a run. `take` gets its moments in order."""

    started_ms: float
    """Start of the query, in milliseconds since 1970."""
    begun_ms: float = 0.0
    """Begin of the first moment, in milliseconds since 1970; 0 if there was none."""
    ended_ms: float = 0.0
    seconds: float = 0.0
    rows: int = 0
    epochs: int = 0
    runs_again: int = 0
    most_rate: float = 0.0
    windows: int = 0
    kept: int = 0
    late_rows: int = 0
    dead_letters: int = 0
    most_hosts: int = 0
    functions: int = 0
    lost: int = 0
    """Moments in which slots left a lost host."""
    moved_slots: int = 0
    host_seconds: float = 0.0
    last: Moment | None = None
    sla: SLA | None = None
    bounds: dict[tuple[str, str | None], BoundTally] = field(default_factory=dict)
    """Figure and step of each bound -> its tally. Those that were there at the end come last."""
    worst: Moment | None = None
    """The moment with the highest average latency; None if no row came out."""
    left_behind: int = 0
    _costs: dict[str, float] = field(default_factory=dict)
    _latency_sum: float = 0.0
    _latency_rows: int = 0
    _money: tuple[Money, Money] | None = None
    """Cost since the query's start, at the first moment that knows it and at the last."""

    def take(self, moment: Moment) -> None:
        """Take in the next moment."""
        if self.last is None:
            self.begun_ms = moment.time_ms - 1000 * moment.seconds
        self.last, self.ended_ms = moment, moment.time_ms
        self.seconds += moment.seconds
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(moment, name))
        self.epochs += len(moment.epochs)
        self.runs_again += sum(epoch.runs - 1 for epoch in moment.epochs)
        self.most_rate = max(self.most_rate, moment.rate or 0.0)
        self.most_hosts = max(self.most_hosts, moment.hosts)
        self.functions = max(self.functions, moment.functions)
        self.host_seconds += moment.hosts * moment.seconds
        self._take_moves(moment)
        self._take_latency(moment)
        self._take_sla(moment)
        if moment.money is not None:
            first = moment.money if self._money is None else self._money[0]
            self._money = first, moment.money

    def _take_moves(self, moment: Moment) -> None:
        moves = moment.moves
        for cost in fields(MovedState):
            self._costs[cost.name] = self._costs.get(cost.name, 0) + getattr(moves, cost.name)
        self.moved_slots += sum(len(h.slots) for h in moves.handovers if h.why != "start")
        self.lost += any(handover.why == "host lost" for handover in moves.handovers)
        if moment.epochs:
            self.left_behind = moves.left_behind

    def _take_latency(self, moment: Moment) -> None:
        if moment.latency is None or not moment.rows:
            return
        self._latency_sum += moment.latency.mean_ms * moment.rows
        self._latency_rows += moment.rows
        worst = None if self.worst is None else self.worst.latency
        if worst is None or moment.latency.mean_ms > worst.mean_ms:
            self.worst = moment

    def _take_sla(self, moment: Moment) -> None:
        self.sla = moment.sla or self.sla
        for bound in moment.all_bounds:
            whose = bound.kind, bound.step
            tally = self.bounds.get(whose) or BoundTally(bound)
            self.bounds[whose] = tally
            tally.newest = bound
            tally.windows += bound.windows
            tally.kept += bound.kept
            reached_ms = bound.reached_ms
            if reached_ms is not None and reached_ms > (tally.worst_ms or 0.0):
                tally.worst_ms, tally.worst_at_ms = reached_ms, moment.time_ms

    @property
    def hosts(self) -> float:
        """Number of hosts on average over time."""
        return self.host_seconds / self.seconds if self.seconds else 0.0

    @property
    def mean_ms(self) -> float:
        """Average latency over all rows, in milliseconds."""
        return self._latency_sum / max(self._latency_rows, 1)

    @property
    def moves(self) -> MovesMoment:
        """The cost of all moves. Of entries left behind, the newest count is that of all."""
        return MovesMoment(**{**self._costs, "left_behind": self.left_behind})  # type: ignore[arg-type]

    @property
    def from_the_start(self) -> bool:
        """Whether the first moment is that of the query's start."""
        return self.begun_ms <= self.started_ms + _FROM_THE_START_MS

    @property
    def money(self) -> Money | None:
        """Cost of the recorded time; None if it is not known."""
        if self._money is None:
            return None
        first, last = self._money
        if self.from_the_start:
            return last
        return Money(last.hosts - first.hosts, last.functions - first.functions)


_SUMS = ("rows", "windows", "kept", "late_rows", "dead_letters")
"""Fields of a moment that add up, which a tally has too."""
