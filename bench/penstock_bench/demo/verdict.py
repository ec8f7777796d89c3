"""What became of a demo: its SLA by the query's recording, its hosts, the kill, and the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.driver.progress import EpochProgress
from penstock.live.sources.rate import ArrivalTimes
from penstock.model import SLA
from penstock.observe.moment import Moment

RIGHT, WRONG, MISSED = 0, 1, 3
"""Exit codes of the demo. MISSED: the SLA was missed, or no host was killed and recovered."""


@dataclass(frozen=True)
class Judged:
    """The seconds of a demo after its warm-up."""

    windows: int
    """Windows of the SLA that ended, and those that bids without output had missed at the end."""
    kept: int
    """Those of them in which it was kept."""
    worst_ms: float
    """Highest average latency of a second."""
    most_hosts: int
    mean_hosts: float
    moved: int
    """Slots that moved to another host."""
    waiting_ms: float = 0.0
    """How long the oldest bid without output had waited at the end."""

    @property
    def met(self) -> bool:
        """Whether the SLA was kept in every window, and there was one."""
        return 0 < self.windows == self.kept


def judged(moments: Sequence[Moment], sla: SLA, begin_ms: float, waiting_ms: float = 0.0) -> Judged:
    """Judge the moments of a query from `begin_ms` on, the end of the warm-up. The SLA's windows that began
    before it do not count.

    The query judges nothing until it has output again, so a stall at the end is judged here, by the time that
    the oldest bid without output has waited.
    """
    after_ms = begin_ms + sla.window_ms
    story = [moment for moment in moments if moment.time_ms - 1000 * moment.seconds >= after_ms]
    hosts = [moment.hosts for moment in story] or [0]
    handovers = [handover for moment in story for handover in moment.moves.handovers]
    return Judged(
        windows=sum(moment.windows for moment in story) + _overdue(waiting_ms, sla),
        kept=sum(moment.kept for moment in story),
        worst_ms=max((m.latency.mean_ms for m in story if m.latency), default=0.0),
        most_hosts=max(hosts),
        mean_hosts=sum(hosts) / len(hosts),
        moved=sum(len(handover.slots) for handover in handovers),
        waiting_ms=waiting_ms,
    )


def _overdue(waiting_ms: float, sla: SLA) -> int:
    """Windows, begun ones included, in which a bid has waited for longer than the bound."""
    return max(0, math.ceil((waiting_ms - sla.latency_ms) / sla.window_ms))


_SURE_MS = 5_000.0
"""Milliseconds without output after which it is a stall, whatever couriers say of the bids that wait."""


def backlog_ms(arrivals: ArrivalTimes, backlog: int, passed_ms: float) -> float:
    """How long the oldest of so many waiting bids has waited at least, `passed_ms` after arrivals began.

    >>> from penstock.live.sources.rate import Even
    >>> backlog_ms(Even(100), 50, 2_000), backlog_ms(Even(100), 0, 2_000)
    (490.0, 0.0)
    """
    arrived = int(arrivals.cumulative(passed_ms))
    if backlog <= 0 or arrived <= 0:
        return 0.0
    oldest = np.array([max(0, arrived - backlog)], np.int64)
    return max(0.0, passed_ms - float(arrivals.arrival_us(oldest)[0]) / 1000)


def stalled_ms(silent_ms: float, backlog_ms: float) -> float:
    """How long bids have waited without any output. On a busy machine an epoch may be slow to end while its
    bids are done in time, so silence alone tells it only if it is long.

    >>> stalled_ms(2_500, 40), stalled_ms(2_500, 2_000), stalled_ms(6_000, 40)
    (40, 2000, 6000)
    """
    return silent_ms if silent_ms > _SURE_MS else min(silent_ms, backlog_ms)


def silent_ms(epochs: Sequence[EpochProgress], begin_ms: float, now_ms: float) -> float:
    """Milliseconds since an epoch with bids last ended, or since `begin_ms` if that is later."""
    done_ms = max((epoch.done_ms for epoch in epochs if epoch.rows), default=begin_ms)
    return max(0.0, now_ms - max(done_ms, begin_ms))


@dataclass(frozen=True)
class Killed:
    """A host's process that was killed."""

    host: str
    pid: int
    time_ms: float
    """In milliseconds since 1970."""

    def recovery_s(self, epochs: Sequence[EpochProgress]) -> float | None:
        """Seconds until the bids that it was working on were in the sink; None if they are not yet.

        The epoch in which a host dies is run again, and so are the bids in it.
        """
        ends = (
            epoch.done_ms for epoch in epochs if epoch.runs > 1 and epoch.done_ms > self.time_ms
        )
        done_ms = next(ends, None)
        return None if done_ms is None else (done_ms - self.time_ms) / 1000


def exit_code(right: bool, met: bool, recovery_s: float | None) -> int:
    """0 if the answer is right, the SLA was met, and a killed host recovered; 1 if the answer is wrong; 3 if
    it is right, and something else is missing. `recovery_s` is None without a kill or without recovery.

    >>> exit_code(True, True, 0.7), exit_code(False, False, 0.7)
    (0, 1)
    >>> exit_code(True, False, 0.7), exit_code(True, True, None)
    (3, 3)
    """
    if not right:
        return WRONG
    return RIGHT if met and recovery_s is not None else MISSED
