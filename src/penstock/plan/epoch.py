"""The plan of an epoch: what every courier and host must agree on while the epoch runs.

A plan is immutable. It travels to the couriers as JSON text in a Spark local property, so that a task
needs no round trip to learn it: Spark shows these to whoever reads its event log or its UI, so there is no
secret in it. Its times decide timers and TTLs, so that a retry decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.reflex import Reflex


@dataclass(frozen=True)
class RouteTable:
    """slot -> host, as an index into `hosts`. One per keyed step and epoch.

    >>> routes = RouteTable.even([HostId("a"), HostId("b")], slots=4)
    >>> routes.slots_of(1).tolist()
    [2, 3]
    """

    hosts: tuple[HostId, ...]
    owner: npt.NDArray[np.int32]

    @staticmethod
    def even(hosts: list[HostId], slots: int) -> RouteTable:
        """Contiguous runs of slots, as equal in number as can be."""
        owner = (np.arange(slots, dtype=np.int64) * len(hosts) // slots).astype(np.int32)
        return RouteTable(tuple(hosts), owner)

    def slots_of(self, host: int) -> npt.NDArray[np.int32]:
        return np.flatnonzero(self.owner == host).astype(np.int32)


@dataclass(frozen=True)
class Offload:
    """The part of a segment's rows that goes to burst workers in an epoch, and how long couriers wait."""

    shares: npt.NDArray[np.float64]
    """Share of each slot's rows, from 0 to 1; for stateless steps of each partition's
    rows, or one for all."""
    workers: int
    """How many may be at work at a time, for all couriers together."""
    deadline_ms: int
    """Milliseconds without an answer after which a courier does the rows of an invocation itself."""
    per_courier: tuple[int, ...] = ()
    """Burst workers that each courier may keep busy, by partition; 0: it keeps its rows. Empty: all couriers
    alike."""
    reflex: Reflex | None = None
    """What couriers do about more rows than hosts can take; None: nothing but what the shares say."""

    def __post_init__(self) -> None:
        fit = np.all((self.shares >= 0) & (self.shares <= 1))  # false for NaN, too
        if not fit or self.workers < 1 or self.deadline_ms < 1:
            raise ProtocolError(
                f"rows cannot be offloaded in shares from {np.min(self.shares, initial=0.0)} to "
                f"{np.max(self.shares, initial=0.0)} to {self.workers} burst workers with a "
                f"deadline of {self.deadline_ms} ms",
                hint="use shares from 0 to 1, at least one burst worker and a deadline above 0",
            )

    def at_once(self, partition: int, partitions: int) -> int:
        """How many burst workers one courier of several may keep busy.

        >>> [Offload(np.ones(1), workers=5, deadline_ms=800).at_once(p, 3) for p in range(3)]
        [2, 2, 1]
        """
        if len(self.per_courier) == partitions:
            return self.per_courier[partition]
        each, rest = divmod(self.workers, partitions)
        return max(1, each + (partition < rest))

    def share_of(self, partition: int, partitions: int) -> float:
        """For stateless steps: the part of one courier's rows that goes to burst workers."""
        alike = len(self.shares) != partitions
        return float(np.mean(self.shares) if alike else self.shares[partition])


@dataclass(frozen=True)
class StepRoutes:
    """What a courier needs to reach one keyed step, and the times that step lives by."""

    step: StepId
    routes: RouteTable
    endpoints: tuple[str, ...]
    """Flight locations, in the order of `routes.hosts`."""
    time: EpochTime
    watched: tuple[int, ...] = ()
    """Slots whose keys couriers count: one of them may be hotter than a host can take."""
    two_stage: bool = False
    """Whether couriers combine the rows of each key whatever that costs them: a key is then one
    record of each task for its host. Only where the step's state merges; elsewhere it says nothing."""
    offload: Offload | None = None
    """What goes to burst workers of the segment that ends in this step; None: nothing."""

    @property
    def channels(self) -> int:
        """How many each courier has to each host: where burst workers help, what they make of rows has
        one of its own."""
        return 1 if self.offload is None else 2


@dataclass(frozen=True)
class EpochPlan:
    """All that couriers and hosts must agree on for one run of an epoch."""

    epoch: int
    run: int
    """Counts the tries at this epoch: a message of an earlier run is refused."""
    partitions: int
    """How many couriers there are: a host is done when it has heard of each."""
    steps: tuple[StepRoutes, ...]
    driver: str
    """The registry's Flight location."""
    reach: str | None = None
    """How couriers reach burst workers, as text; None: there are none."""
    map_offloads: tuple[tuple[str, Offload], ...] = ()
    """What goes to burst workers of segments without a keyed step, by segment."""
    timed: tuple[str, ...] = ()
    """Segments without a keyed step of which couriers tell what they did, and how long that took."""
