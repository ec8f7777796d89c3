"""The plan of an epoch, which all its couriers and hosts share.

A plan is immutable. It travels to the couriers as JSON text in a Spark local property, so that a task
needs no round trip to get it. Spark shows local properties in its event log and UI, so a plan contains no
secrets. Timers and TTLs use the plan's times, so that a retry behaves the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.reflex import Reflex
from penstock.state.keys.slot_map import SlotMap, Split


@dataclass(frozen=True)
class RouteTable:
    """The owner of each slot of a keyed step, in one epoch.

    >>> routes = RouteTable.even([HostId("a"), HostId("b")], slots=4)
    >>> routes.slots_of(1).tolist()
    [2, 3]
    """

    hosts: tuple[HostId, ...]
    owner: npt.NDArray[np.int32]
    """Slot -> index of its host in `hosts`. The extra slots of `splits` are the last ones."""
    splits: tuple[Split, ...] = ()
    """Exceptions: keys of a hash slot that have an extra slot, so that they can be on another host."""

    @cached_property
    def slots(self) -> SlotMap:
        """The slots of the step in this epoch, by hash."""
        return SlotMap(len(self.owner) - len(self.splits), self.splits)

    @staticmethod
    def even(hosts: list[HostId], slots: int) -> RouteTable:
        """Give each host a contiguous range of slots, of equal sizes as far as possible."""
        owner = (np.arange(slots, dtype=np.int64) * len(hosts) // slots).astype(np.int32)
        return RouteTable(tuple(hosts), owner)

    def slots_of(self, host: int) -> npt.NDArray[np.int32]:
        return np.flatnonzero(self.owner == host).astype(np.int32)


@dataclass(frozen=True)
class Offload:
    """The share of a segment's rows that goes to burst workers in an epoch, and the couriers' deadline."""

    shares: npt.NDArray[np.float64]
    """Share of each slot's rows that is offloaded, from 0 to 1. For stateless steps: the share of each
    partition's rows, or one share for all."""
    workers: int
    """Maximum number of concurrent burst workers, over all couriers."""
    deadline_ms: int
    """Milliseconds without a reply after which a courier processes an invocation's rows itself."""
    per_courier: tuple[int, ...] = ()
    """Maximum number of concurrent burst workers of each courier, by partition; 0: it offloads nothing.
    Empty: `workers` are divided evenly."""
    reflex: Reflex | None = None
    """Rule by which couriers offload rows beyond what hosts can take; None: they offload only `shares`."""

    def __post_init__(self) -> None:
        fit = np.all((self.shares >= 0) & (self.shares <= 1))  # false for NaN, too
        if not fit or self.workers < 1 or self.deadline_ms < 1:
            raise ProtocolError(
                f"cannot offload shares from {np.min(self.shares, initial=0.0)} to "
                f"{np.max(self.shares, initial=0.0)} to {self.workers} burst workers with a "
                f"deadline of {self.deadline_ms} ms",
                hint="use shares from 0 to 1, at least one burst worker and a deadline above 0",
            )

    def at_once(self, partition: int, partitions: int) -> int:
        """Maximum number of concurrent burst workers of the courier of one partition.

        >>> [Offload(np.ones(1), workers=5, deadline_ms=800).at_once(p, 3) for p in range(3)]
        [2, 2, 1]
        """
        if len(self.per_courier) == partitions:
            return self.per_courier[partition]
        each, rest = divmod(self.workers, partitions)
        return max(1, each + (partition < rest))

    def share_of(self, partition: int, partitions: int) -> float:
        """Share of one courier's rows that goes to burst workers, for stateless steps."""
        alike = len(self.shares) != partitions
        return float(np.mean(self.shares) if alike else self.shares[partition])


def of_parts(shares: npt.NDArray[np.float64], origins: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The shares of slots after some were split: each has that of the slot that it was part of."""
    return shares[origins] if len(shares) > 1 else shares


@dataclass(frozen=True)
class StepRoutes:
    """Routes, endpoints and times of one keyed step, for the couriers."""

    step: StepId
    routes: RouteTable
    endpoints: tuple[str, ...]
    """Flight locations, in the order of `routes.hosts`."""
    time: EpochTime
    watched: tuple[int, ...] = ()
    """Slots whose keys couriers count, because one key may be too hot for a single host."""
    two_stage: bool = False
    """Whether couriers always combine the rows of each key, even if that costs more than it saves. A host
    then gets one record per key and task. Ignored if the step's state cannot be merged."""
    offload: Offload | None = None
    """Offloading of the segment that ends in this step; None: nothing is offloaded."""

    @property
    def channels(self) -> int:
        """Number of channels from each courier to each host. With offloading there is a second one, for the
        results of burst workers."""
        return 1 if self.offload is None else 2


@dataclass(frozen=True)
class EpochPlan:
    """The shared configuration of couriers and hosts for one run of an epoch."""

    epoch: int
    run: int
    """Number of this attempt at the epoch. Messages of earlier runs are rejected."""
    partitions: int
    """Number of couriers. A host is done when each has closed its channels."""
    steps: tuple[StepRoutes, ...]
    driver: str
    """Flight location of the driver's registry."""
    reach: str | None = None
    """Address of the burst workers' backend, as text; None: there are no burst workers."""
    map_offloads: tuple[tuple[str, Offload], ...] = ()
    """(segment, its offloading), for segments without a keyed step."""
    timed: tuple[str, ...] = ()
    """Segments without a keyed step whose row counts and run times couriers report."""
