"""Simulated burst workers: their settings, and the burst workers of one step.

An epoch gives each burst worker the same number of rows. A warm one begins at once; others are started, and
stay for a while. Simulated burst workers never fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.control.money import Costs, FunctionPrice, HostPrice
from penstock.control.treat.offloading import OffloadSettings
from penstock.errors import SettingError
from penstock.wire.report import Usage

_NOT_NEGATIVE = (
    "at_most", "start_ms", "overhead_ms", "partials_per_row", "partials_each", "merge_cost", "idle_ms",
)  # fmt: skip


@dataclass(frozen=True)
class WorkerPlane:
    """Settings of simulated burst workers. Times are milliseconds.

    >>> WorkerPlane(partials_per_row=0.1, partials_each=50.0).partials(rows=2000, workers=4)
    304.0
    """

    at_most: int = 200
    """Maximum number of burst workers that run at the same time."""
    speed: float = 1.0
    """Speed relative to an ordinary host of the step."""
    assumed_speed: float | None = None
    """Speed that the policy assumes until it is measured. None: the true one."""
    start_ms: float = 300.0
    """Milliseconds until a started burst worker is ready."""
    overhead_ms: float = 20.0
    """Milliseconds that an invocation takes in addition to the work on its rows."""
    partials_per_row: float = 0.1
    """Partial states that burst workers return for each row."""
    partials_each: float = 0.0
    """Partial states that burst workers return for each courier in addition, for keys that all have."""
    couriers: int = 2
    merge_cost: float = 1.0
    """Cost for a host to merge one partial state, in records."""
    warm_for: float = 5.0
    """Multiple of the stable load that warm burst workers can carry. 0: none are kept warm."""
    idle_ms: float = 60_000.0
    """Milliseconds of idle time after which a burst worker that need not be warm ends."""
    patience_ms: float = 120_000.0
    """Milliseconds that burst workers carry a burst before hosts are added for it."""
    price: FunctionPrice = field(default_factory=FunctionPrice)

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value < 0:
                raise SettingError(f"{name} of the functions is {value:g}", hint="use 0 or more")
        if self.speed <= 0:
            raise SettingError(
                f"speed of the functions is {self.speed:g}", hint="use more than 0, such as 1"
            )

    def settings(self, host: HostPrice, deadline_ms: float | None = None) -> OffloadSettings:
        """Settings for the policy of burst workers.

        The policy must measure how many partial states come back. It only knows beforehand if there are
        none, as from stateless steps.
        """
        usual = OffloadSettings.partials_per_row
        return OffloadSettings(
            at_most=self.at_most,
            speed=self.speed if self.assumed_speed is None else self.assumed_speed,
            start_ms=self.start_ms,
            deadline_ms=deadline_ms,
            merge_cost=self.merge_cost,
            partials_per_row=usual if self.partials_per_row or self.partials_each else 0.0,
            patience_ms=self.patience_ms,
            warm_for=self.warm_for,
            costs=Costs(host, self.price),
        )

    def partials(self, rows: float, workers: int) -> float:
        """Number of partial states that burst workers return for these rows.

        Rows are divided among burst workers by key, so each shares about one key with another.
        """
        keys = rows * self.partials_per_row + self.couriers * self.partials_each
        cut = workers if keys > 0 else 0
        return min(rows, keys + cut)


@dataclass(slots=True)
class _Worker:
    ready_ms: float
    used_ms: float
    """Time when the worker was last busy."""


class SimWorkers:
    """The burst workers of one step. `usage` has their work and cost so far.

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
        """Keep `wanted` burst workers warm from now on. Others end after some idle time."""
        self._wanted = min(wanted, self.plane.at_most)
        self._let_go(now_ms)
        while len(self._there) < self._wanted:
            self._there.append(_Worker(now_ms + self.plane.start_ms, now_ms))

    def work(self, began_ms: float, rows: float, workers: int) -> float:
        """Let burst workers process an epoch's rows. Returns how long that takes, in milliseconds."""
        workers = min(workers, self.plane.at_most)
        if rows <= 0 or workers < 1:
            return 0.0
        self._let_go(began_ms)
        cold = max(0, workers - len(self._there))
        self._there += [_Worker(began_ms + self.plane.start_ms, began_ms) for _ in range(cold)]
        self._there.sort(key=lambda worker: worker.ready_ms)
        each_ms = self.plane.overhead_ms + rows / workers * 1000.0 / self._rate
        done_ms = began_ms
        for worker in self._there[:workers]:
            worker.used_ms = max(worker.ready_ms, began_ms) + each_ms
            done_ms = max(done_ms, worker.used_ms)
        # A cold start for an epoch is billed; keeping a burst worker warm costs nothing.
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
        """End burst workers that are not wanted and were idle for too long."""
        spare = len(self._there) - self._wanted
        if spare <= 0:
            return
        self._there.sort(key=lambda worker: -worker.used_ms)
        old = [worker for worker in self._there if now_ms - worker.used_ms > self.plane.idle_ms]
        gone = len(old[-spare:])
        self._there = self._there[: len(self._there) - gone]
