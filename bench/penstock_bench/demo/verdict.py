"""What became of a demo: its SLA by the query's recording, its hosts, the kill, and the answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.driver.progress import EpochProgress
from penstock.model import SLA
from penstock.observe.moment import Moment

RIGHT, WRONG, MISSED = 0, 1, 3
"""Exit codes of the demo."""


@dataclass(frozen=True)
class Judged:
    """The seconds of a demo after its warm-up."""

    windows: int
    """Windows of the SLA that ended."""
    kept: int
    """Those of them in which it was kept."""
    worst_ms: float
    """Highest average latency of a second."""
    most_hosts: int
    mean_hosts: float
    moved: int
    """Slots that moved to another host."""

    @property
    def met(self) -> bool:
        """Whether the SLA was kept in every window, and there was one."""
        return 0 < self.windows == self.kept


def judged(moments: Sequence[Moment], sla: SLA, begin_ms: float) -> Judged:
    """Judge the moments of a query from `begin_ms` on, the end of the warm-up. The SLA's windows that began
    before it do not count."""
    after_ms = begin_ms + sla.window_ms
    story = [moment for moment in moments if moment.time_ms - 1000 * moment.seconds >= after_ms]
    hosts = [moment.hosts for moment in story] or [0]
    handovers = [handover for moment in story for handover in moment.moves.handovers]
    return Judged(
        windows=sum(moment.windows for moment in story),
        kept=sum(moment.kept for moment in story),
        worst_ms=max((m.latency.mean_ms for m in story if m.latency), default=0.0),
        most_hosts=max(hosts),
        mean_hosts=sum(hosts) / len(hosts),
        moved=sum(len(handover.slots) for handover in handovers),
    )


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


def exit_code(right: bool, met: bool) -> int:
    """0 if the answer is right and the SLA was met, 1 if the answer is wrong, 3 if only the SLA was missed.

    >>> exit_code(True, True), exit_code(False, False), exit_code(True, False)
    (0, 1, 3)
    """
    if not right:
        return WRONG
    return RIGHT if met else MISSED
