"""Settings: what can be tuned, in which unit, and why the default is what it is.

They are read once, when a flow starts, and handed down; nothing deeper reads an environment variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import SettingError
from penstock.faults import Fault

ScheduleName = Literal["ct", "lp", "et", "qst"]

_PARTS_PER_WORKER = 2
"""Enough for a worker to find another part when one is taken; more cost a call each."""


@dataclass(frozen=True)
class Settings:
    """How a started flow behaves.

    >>> Settings(heartbeat_ms=200).driver_lost_ms
    3000
    """

    heartbeat_ms: int = 500
    """How often a host asks whether the driver lives and still counts on it."""

    driver_lost_ms: int = 3_000
    """A host that cannot reach the driver for so long ends itself."""

    host_start_ms: int = 120_000
    """How long to wait for a host to come up: an executor may have to be started for it."""

    rpc_timeout_ms: int = 120_000
    """The longest that one call to a host may take, restoring its state included."""

    exchange_timeout_ms: int = 3_600_000
    """The longest that one courier's channel may stay open: a backfill is a single, long epoch."""

    epoch_runs: int = 4
    """How often an epoch is tried, within the callback, when hosts die under it."""

    driver_port: int = 0
    """Port of the driver's registry; 0 lets the system choose."""

    progress_kept: int = 200
    """How many epochs `query.progress` remembers."""

    host_memory_mb: int | None = None
    """State that a host holds at most, between epochs; beyond it, entries that were not touched for
    longest are dropped and read again from the store when rows need them. None: no limit."""

    host_cores: int | None = None
    """Worker threads of a host. None: as many as Spark gives a task (`spark.task.cpus`)."""

    host_parts: int | None = None
    """Into how many parts a host cuts its slots, so that several workers find something to do. None:
    one for a host with one worker, else two for each worker."""

    chunk_rows: int = 65_536
    """A chain on one host takes a channel in chunks of so many rows; a step on its own, where it has
    several workers, in chunks of at least so many. Smaller ones spread work better and cost more
    each; 1 is allowed."""

    schedule: ScheduleName = "ct"
    """Which operator a host's worker turns to next: the one with the lowest throughput, the last in
    the chain, the one that has longest to do, or the first whose output is not too long."""

    compact_epochs: int = 32
    """So many epochs' deltas are merged at a time, in the background. More of them make reading from
    the store slower, fewer make more work."""

    keep_epochs: int = 100
    """How many versions of the state are kept to look at; the newest two always are."""

    host_rates: tuple[float, ...] = ()
    """For trials: records a second that hosts take at most, by their number, the figures repeating.
    Empty: as fast as they can."""

    paced_steps: tuple[str, ...] | None = None
    """For trials: the steps whose hosts have a set rate; those of others are as fast as they can. None:
    all of them."""

    map_rate: float | None = None
    """For trials: records a second that a courier takes at most through stateless steps which no keyed
    one is run together with, such as those of a flow that has none. None: as fast as it can."""

    combine: bool = True
    """For trials: whether couriers combine the rows of a key before they send them, where the step's
    state merges. False: each row, or each of its windows, reaches a host as a record, so that it is
    hosts that do the work; not even the rows of a hot key are combined then. Functions combine what
    they are given in any case."""

    host_delay_ms: int = 0
    """For trials: a host that is asked for while the flow runs comes up so much later than it could,
    as if its machine had to be started first."""

    faults: tuple[Fault, ...] = ()
    """For tests: where processes of this flow shall fail (see `penstock.testing`)."""

    def __post_init__(self) -> None:
        counts = {n: getattr(self, n) for n in ("host_cores", "host_parts", "chunk_rows")}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise SettingError(f"{name}={count}", hint="use 1 or more")
        if self.map_rate is not None and self.map_rate <= 0:
            raise SettingError(f"map_rate={self.map_rate:g}", hint="use more than 0, or None")
        if self.schedule not in get_args(ScheduleName):
            raise SettingError(
                f"there is no schedule {self.schedule!r}",
                hint=f"use one of {', '.join(get_args(ScheduleName))}",
            )

    @property
    def workers(self) -> int:
        """Worker threads of a host."""
        return self.host_cores or 1

    def parts(self, slots: int) -> int:
        """Parts of a host's state, for a step with so many slots.

        >>> Settings().parts(64), Settings(host_cores=2).parts(64), Settings(host_cores=4).parts(1)
        (1, 4, 1)
        """
        wanted = self.host_parts or (1 if self.workers == 1 else _PARTS_PER_WORKER * self.workers)
        return min(wanted, slots)
