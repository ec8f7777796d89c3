"""A trial of one rate on a running query.

Latency is measured for every tick, from its arrival until the output of its epoch is in the sink. It is
computed from Spark's progress reports in the same way for every side: the source's end offset, and the time
at which the sink was done.
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
"""Rows per second while a backlog is worked off."""
_GROWTH = 0.3
"""Growth of the mean latency from a trial's first third to its last, as a share of the bound, above which the
backlog counts as growing."""
_HOPELESS, _RESTED = 4.0, 1.0
"""Waiting time of the oldest row, as a multiple of the bound, above which a trial ends early, and below
which the next one begins."""
_NEAR = 0.8
"""Success below which a failed trial is not repeated."""
_POLL_S, _UP_S, _REST_S = 0.25, 120.0, 90.0


@dataclass(frozen=True)
class Spell:
    """Length of a trial."""

    settle_s: float
    """Seconds before the measurement, in which effects of the previous rate fade."""
    seconds: float
    """Seconds of the measurement."""


@dataclass(frozen=True)
class RateTrial:
    """The result of a trial."""

    rate: float
    """Rows per second."""
    success: float
    """Share of windows in which the SLA was kept."""
    mean_ms: float | None
    """Mean latency in milliseconds of the rows that were done; None if none was."""
    p99_ms: float | None
    growth_ms: float | None
    """Mean latency of the last third minus that of the first, in milliseconds."""
    done: float
    """Share of the rows that were done when the trial ended."""
    grew: bool
    """Whether the backlog was growing."""

    @property
    def holds(self) -> bool:
        return self.success >= SUCCESS and self.done == 1.0 and not self.grew

    @property
    def near(self) -> bool:
        """Whether it failed only narrowly, perhaps because the machine paused."""
        return not self.holds and self.done == 1.0 and self.success >= _NEAR


def judged(
    rate: float, delivered: Sequence[Delivered], first: int, spell: Spell, sla: SLA
) -> RateTrial:
    """The result of a trial that began with tick `first`. Times are milliseconds from the arrival of tick 0.

    >>> every_half = [Delivered(500 * n, 500.0 * n + 200) for n in range(1, 9)]
    >>> trial = judged(9.0, every_half, 500, Spell(0.5, 2.0), SLA(1000, 1000))
    >>> trial.holds, trial.success, round(trial.mean_ms), trial.grew
    (True, 1.0, 450, False)
    """
    length_s = spell.settle_s + spell.seconds
    number = np.arange(first, first + round(length_s * 1000 / TICK_MS), dtype=np.int64)
    from_us = first * TICK_MS * 1000
    t_us = TICKS.arrival_us(number) - from_us
    done = done_ms(delivered, number) - from_us / 1000
    truth = truth_of(t_us, np.zeros_like(number), done, 1, length_s)
    # Rows that arrived while the rate settled are part of the first windows, but of no other metric.
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
        """Try a rate. There is no backlog at the beginning, and none at the end."""
        first = self._arrivals.change(rate)
        end = first + round((spell.settle_s + spell.seconds) * 1000 / TICK_MS)
        self._until(lambda: self._reached() >= end or self._hopeless(), _UP_S)
        trial = judged(rate, self._delivered(), first, spell, self._sla)
        if not trial.holds:
            self._clear_backlog()
        return trial

    def hold(self, rate: float, seconds: float) -> None:
        """Warm up the JVM with this rate, pausing whenever the backlog grows too long."""
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self._arrivals.change(rate)
            self._until(lambda: time.monotonic() >= over or self._hopeless(), seconds + _UP_S)
            if self._hopeless():
                self._clear_backlog()

    def _clear_backlog(self) -> None:
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
        """Milliseconds that the oldest row not yet in the sink has been waiting."""
        return time.time() * 1000 - (self._arrivals.start_ms + self._reached() * TICK_MS)

    def _delivered(self) -> list[Delivered]:
        """The recent triggers that had rows."""
        progress = [dict(trigger) for trigger in self._query.recentProgress]
        return [
            Delivered(end_row(trigger), in_sink_ms(trigger) - self._arrivals.start_ms)
            for trigger in progress
            if end_row(trigger) > start_row(trigger)
        ]

    def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline, pause = time.monotonic() + timeout_s, threading.Event()
        while not condition():
            if not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if time.monotonic() > deadline:
                raise PenstockError(f"a side of the bench took more than {timeout_s:.0f} s")
            pause.wait(_POLL_S)


def plain(trial: RateTrial) -> Result:
    """A trial in the form of a report."""
    metrics = {
        "success": round(trial.success, 4),
        "mean_ms": _rounded(trial.mean_ms),
        "p99_ms": _rounded(trial.p99_ms),
        "growth_ms": _rounded(trial.growth_ms),
        "done": round(trial.done, 4),
    }
    return {"rate": round(trial.rate), "holds": trial.holds, **metrics}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
