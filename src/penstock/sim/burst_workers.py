"""Simulated burst workers: what they are like, and those of one step as time goes on.

An epoch gives each burst worker of its step the same number of rows. One that is ready begins at
once; one that is not is started for it, and stays for a while. Nothing fails here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.control.money import Costs, FunctionPrice, HostPrice
from penstock.control.treat.offloading import OffloadSettings
from penstock.errors import SettingError
from penstock.wire.report import Usage


@dataclass(frozen=True)
class WorkerPlane:
    """What burst workers are like. Times are milliseconds.

    >>> WorkerPlane(partials_per_row=0.1, partials_each=50.0).partials(rows=2000, workers=4)
    304.0
    """

    at_most: int = 200
    """Burst workers at a time."""
    speed: float = 1.0
    """Relative to an ordinary host of the step."""
    start_ms: float = 300.0
    """Until one that is started is ready."""
    overhead_ms: float = 20.0
    """What an invocation takes beyond the work on its rows."""
    partials_per_row: float = 0.1
    """Partial states that come back for a row that a courier hands to burst workers..."""
    partials_each: float = 0.0
    """...and beside them for each courier: there are keys that all of them have rows of."""
    couriers: int = 2
    merge_cost: float = 1.0
    """Cost of merging one for a host, in records."""
    warm_for: float = 5.0
    """Times the stable load for which they are kept ready; 0: none are."""
    idle_ms: float = 60_000.0
    """Idle time after which one that need not be kept ready is let go."""
    patience_ms: float = 120_000.0
    """A burst that they carry for longer is one that lasts: then hosts are added."""
    price: FunctionPrice = field(default_factory=FunctionPrice)

    def __post_init__(self) -> None:
        least = min(
            *(self.at_most, self.start_ms, self.overhead_ms, self.partials_per_row),
            *(self.partials_each, self.merge_cost, self.idle_ms),
        )
        if least < 0 or self.speed <= 0:
            raise SettingError(
                f"functions with a value of {least:g}, of speed {self.speed:g}",
                hint="use 0 or more, and a speed above 0",
            )

    def settings(self, host: HostPrice, deadline_ms: float | None = None) -> OffloadSettings:
        """What the policy is told. It has to find out how many partial states come back; that
        there are none, as from stateless steps, can be known before."""
        usual = OffloadSettings.partials_per_row
        return OffloadSettings(
            at_most=self.at_most,
            speed=self.speed,
            start_ms=self.start_ms,
            deadline_ms=deadline_ms,
            merge_cost=self.merge_cost,
            partials_per_row=usual if self.partials_per_row or self.partials_each else 0.0,
            patience_ms=self.patience_ms,
            warm_for=self.warm_for,
            costs=Costs(host, self.price),
        )

    def partials(self, rows: float, workers: int) -> float:
        """Partial states that so many burst workers make of rows that are shared out among them.

        By key, so that hardly more than one key of each burst worker is also another one's.
        """
        keys = rows * self.partials_per_row + self.couriers * self.partials_each
        cut = workers if keys > 0 else 0
        return min(rows, keys + cut)


@dataclass(slots=True)
class _Worker:
    ready_ms: float
    used_ms: float
    """When it was busy last."""


class SimWorkers:
    """The burst workers of one step. `usage` is what they have done and cost so far.

    >>> pool = SimWorkers(WorkerPlane(start_ms=300.0, overhead_ms=20.0), host_rate=1000.0)
    >>> pool.keep(0.0, 2)
    >>> pool.work(1000.0, rows=400.0, workers=2), pool.usage.cold_starts
    (220.0, 0)
    >>> pool.work(2000.0, rows=400.0, workers=4), pool.usage.cold_starts
    (420.0, 2)
    >>> pool.usage.invocations, round(pool.usage.seconds, 2)
    (6, 1.52)
    """

    def __init__(self, plane: WorkerPlane, host_rate: float) -> None:
        self.plane, self.usage = plane, Usage()
        self._rate = plane.speed * host_rate
        self._there: list[_Worker] = []
        self._wanted = 0

    def __len__(self) -> int:
        return len(self._there)

    def keep(self, now_ms: float, wanted: int) -> None:
        """Have this many ready from now on; others stay only for a while."""
        self._wanted = min(wanted, self.plane.at_most)
        self._let_go(now_ms)
        while len(self._there) < self._wanted:
            self._there.append(_Worker(now_ms + self.plane.start_ms, now_ms))

    def work(self, began_ms: float, rows: float, workers: int) -> float:
        """Let this many work on an epoch's rows. Returns how long that takes, in ms."""
        workers = min(workers, self.plane.at_most)
        if rows <= 0 or workers < 1:
            return 0.0
        self._let_go(began_ms)
        cold = max(0, workers - len(self._there))
        self._there += [_Worker(began_ms + self.plane.start_ms, began_ms) for _ in range(cold)]
        self._there.sort(key=lambda one: one.ready_ms)
        each_ms = self.plane.overhead_ms + rows / workers * 1000.0 / self._rate
        done_ms = began_ms
        for one in self._there[:workers]:
            one.used_ms = max(one.ready_ms, began_ms) + each_ms
            done_ms = max(done_ms, one.used_ms)
        # One that is started for an epoch is paid for from then on; who keeps it ready pays nothing.
        seconds = (workers * each_ms + cold * self.plane.start_ms) / 1000.0
        self.usage += Usage(
            invocations=workers,
            seconds=seconds,
            cold_starts=cold,
            cold_start_ms=cold * self.plane.start_ms,
            money=self.plane.price.money(workers, seconds),
        )
        return done_ms - began_ms

    def _let_go(self, now_ms: float) -> None:
        """Let those go that are beyond what is wanted and were idle for too long."""
        spare = len(self._there) - self._wanted
        if spare <= 0:
            return
        self._there.sort(key=lambda one: -one.used_ms)
        old = [one for one in self._there if now_ms - one.used_ms > self.plane.idle_ms]
        gone = len(old[-spare:])
        self._there = self._there[: len(self._there) - gone]
