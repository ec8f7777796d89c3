"""One rate on a running query: was the SLA kept?

Latency is that of every tick of rows, from its arrival until the output of the epoch that it is in is in
the sink. It follows from what Spark tells of each trigger, the same way for every side: how far the
source had come, and when the sink was done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError
from penstock.model import SLA
from penstock_bench.live.latency import Delivered, done_ms, truth_of
from penstock_bench.load.arrivals import TICK_MS, TICKS, Arrivals
from penstock_bench.report import Result
from penstock_bench.sides import end_row, in_sink_ms, start_row

SUCCESS = 0.99
"""Share of windows in which the SLA must be kept."""
REST = 1_000.0
"""Rows a second while a backlog goes."""
_GROWTH = 0.3
"""Mean latency of a trial's last third may be so much of the bound above that of its first; more is a
backlog that grows."""
_HOPELESS, _RESTED = 4.0, 1.0
"""A trial ends when rows have been waiting for so many times the bound; the next one begins when none has
been for so many."""
_NEAR = 0.8
"""With less success than that, a failure was no accident."""
_POLL_S, _UP_S, _REST_S = 0.25, 120.0, 90.0


@dataclass(frozen=True)
class Spell:
    """How long a rate is tried."""

    settle_s: float
    """Before it counts: what the rate before has left behind is then over."""
    seconds: float


@dataclass(frozen=True)
class RateTrial:
    """What came of a rate."""

    rate: float
    success: float
    mean_ms: float | None
    """Of the rows that were done; None: none was."""
    p99_ms: float | None
    growth_ms: float | None
    """Mean latency of the last third minus that of the first."""
    done: float
    """Share of the rows that were done when the trial was over."""
    grew: bool
    """Whether a backlog was growing."""

    @property
    def holds(self) -> bool:
        return self.success >= SUCCESS and self.done == 1.0 and not self.grew

    @property
    def near(self) -> bool:
        """It failed, but not by much: a pause of the machine may have been the reason."""
        return not self.holds and self.done == 1.0 and self.success >= _NEAR


def judged(
    rate: float, delivered: Sequence[Delivered], first: int, spell: Spell, sla: SLA
) -> RateTrial:
    """What is to be said of a rate that began with tick `first`. Times are milliseconds from the arrival
    of tick 0.

    >>> every_half = [Delivered(500 * n, 500.0 * n + 200) for n in range(1, 9)]
    >>> told = judged(9.0, every_half, 500, Spell(0.5, 2.0), SLA(1000, 1000))
    >>> told.holds, told.success, round(told.mean_ms), told.grew
    (True, 1.0, 450, False)
    """
    length_s = spell.settle_s + spell.seconds
    number = np.arange(first, first + round(length_s * 1000 / TICK_MS), dtype=np.int64)
    from_us = first * TICK_MS * 1000
    t_us = TICKS.arrival_us(number) - from_us
    done = done_ms(delivered, number) - from_us / 1000
    truth = truth_of(t_us, np.zeros_like(number), done, 1, length_s)
    # Rows of the time before are part of the first windows, but of no other figure.
    row_ms = truth.row_ms[round(spell.settle_s * 1000 / TICK_MS) :]
    known, third = ~np.isnan(row_ms), len(row_ms) // 3
    growth_ms = float(row_ms[-third:].mean() - row_ms[:third].mean())
    return RateTrial(
        rate=rate,
        success=float(truth.success(sla, spell.settle_s)[0]),
        mean_ms=float(row_ms[known].mean()) if known.any() else None,
        p99_ms=float(np.percentile(row_ms[known], 99)) if known.any() else None,
        growth_ms=growth_ms if known.all() else None,
        done=float(known.mean()),
        grew=not growth_ms <= _GROWTH * sla.latency_ms,
    )


class LoadedQuery:
    """A running query and the rate of its rows."""

    def __init__(self, query: StreamingQuery, arrivals: Arrivals, sla: SLA) -> None:
        self._query, self._arrivals, self._sla = query, arrivals, sla
        self._until(lambda: self._reached() > 0, _UP_S)
        self._rest()

    def try_rate(self, rate: float, spell: Spell) -> RateTrial:
        """Let rows arrive at this rate for a while; without a backlog at the beginning, and at the end."""
        first = self._arrivals.change(rate)
        end = first + round((spell.settle_s + spell.seconds) * 1000 / TICK_MS)
        self._until(lambda: self._reached() >= end or self._hopeless(), _UP_S)
        told = judged(rate, self._delivered(), first, spell, self._sla)
        if not told.holds:
            self._let_go()
        return told

    def hold(self, rate: float, seconds: float) -> None:
        """Let rows arrive at this rate for so long, if it can be helped, to warm the JVM."""
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self._arrivals.change(rate)
            self._until(lambda: time.monotonic() >= over or self._hopeless(), seconds + _UP_S)
            if self._hopeless():
                self._let_go()

    def _let_go(self) -> None:
        """Let a backlog go."""
        self._arrivals.change(REST)
        self._rest()

    def _rest(self) -> None:
        self._until(lambda: self._waiting_ms() < _RESTED * self._sla.latency_ms, _REST_S)

    def _hopeless(self) -> bool:
        return self._waiting_ms() > _HOPELESS * self._sla.latency_ms

    def _reached(self) -> int:
        newest = self._query.lastProgress
        return 0 if newest is None else end_row(dict(newest))

    def _waiting_ms(self) -> float:
        """How long the oldest rows have been waiting that are not in the sink yet."""
        return time.time() * 1000 - (self._arrivals.start_ms + self._reached() * TICK_MS)

    def _delivered(self) -> list[Delivered]:
        """Of the triggers that Spark remembers, those that brought rows."""
        progress = [dict(one) for one in self._query.recentProgress]
        return [
            Delivered(end_row(one), in_sink_ms(one) - self._arrivals.start_ms)
            for one in progress
            if end_row(one) > start_row(one)
        ]

    def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline, pause = time.monotonic() + timeout_s, threading.Event()
        while not condition():
            if not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if time.monotonic() > deadline:
                raise PenstockError(f"a side of the bench took over {timeout_s:.0f} s")
            pause.wait(_POLL_S)


def plain(trial: RateTrial) -> Result:
    """A trial as a report has it."""
    told = {
        "success": round(trial.success, 4),
        "mean_ms": _rounded(trial.mean_ms),
        "p99_ms": _rounded(trial.p99_ms),
        "growth_ms": _rounded(trial.growth_ms),
        "done": round(trial.done, 4),
    }
    return {"rate": round(trial.rate), "holds": trial.holds, **told}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
