"""The plan of an epoch: what every courier and host must agree on while the epoch runs.

A plan is immutable. It travels to the couriers as text in a Spark local property, so that a task
needs no round trip to learn it, and its times decide timers and TTLs, so that a retry decides the same.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.reflex import Reflex

_WHOLE = 255
"""A share of 1, in the byte that tells it."""


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

    def to_json(self) -> dict[str, object]:
        packed = base64.b64encode(self.owner.astype("<i4").tobytes()).decode()
        return {"hosts": list(self.hosts), "owner": packed}

    @staticmethod
    def from_json(facts: dict[str, object]) -> RouteTable:
        owner = np.frombuffer(base64.b64decode(str(facts["owner"])), dtype="<i4").astype(np.int32)
        hosts = facts["hosts"]
        assert isinstance(hosts, list)
        return RouteTable(tuple(HostId(h) for h in hosts), owner)


@dataclass(frozen=True)
class Offload:
    """What part of a segment's rows goes to functions in an epoch, and how long couriers wait for them.

    >>> halves = Offload(np.array([0.0, 0.5, 1.0]), functions=4, deadline_ms=800)
    >>> halves.to_json()
    {'shares': 'AID/', 'functions': 4, 'deadline_ms': 800}
    >>> Offload.from_json(halves.to_json()).shares.round(2).tolist()
    [0.0, 0.5, 1.0]
    """

    shares: npt.NDArray[np.float64]
    """Share of each slot's rows, from 0 to 1; for stateless steps of each partition's rows, or one for all.
    As text each is a multiple of 1/255."""
    functions: int
    """How many may be at work at a time, for all couriers together."""
    deadline_ms: int
    """Milliseconds without an answer after which a courier does the rows of an invocation itself."""
    per_courier: tuple[int, ...] = ()
    """Functions that each courier may keep busy, by partition; 0: it keeps its rows. Empty: all couriers
    alike."""
    reflex: Reflex | None = None
    """What couriers do about more rows than hosts can take; None: nothing but what the shares say."""

    def __post_init__(self) -> None:
        fit = np.all((self.shares >= 0) & (self.shares <= 1))  # false for NaN, too
        if not fit or self.functions < 1 or self.deadline_ms < 1:
            raise ProtocolError(
                f"rows cannot be offloaded in shares from {np.min(self.shares, initial=0.0)} to "
                f"{np.max(self.shares, initial=0.0)} to {self.functions} functions with a "
                f"deadline of {self.deadline_ms} ms"
            )

    def at_once(self, partition: int, partitions: int) -> int:
        """How many functions one courier of several may keep busy.

        >>> [Offload(np.ones(1), functions=5, deadline_ms=800).at_once(p, 3) for p in range(3)]
        [2, 2, 1]
        """
        if len(self.per_courier) == partitions:
            return self.per_courier[partition]
        each, rest = divmod(self.functions, partitions)
        return max(1, each + (partition < rest))

    def share_of(self, partition: int, partitions: int) -> float:
        """For stateless steps: the part of one courier's rows that goes to functions."""
        alike = len(self.shares) != partitions
        return float(np.mean(self.shares) if alike else self.shares[partition])

    def to_json(self) -> dict[str, object]:
        shares = np.rint(self.shares * _WHOLE).astype(np.uint8)
        facts: dict[str, object] = {
            "shares": base64.b64encode(shares.tobytes()).decode(),
            "functions": self.functions,
            "deadline_ms": self.deadline_ms,
        }
        if self.per_courier:
            facts["per_courier"] = list(self.per_courier)
        if self.reflex is not None:
            facts["reflex"] = self.reflex.to_json()
        return facts

    @staticmethod
    def from_json(facts: dict[str, Any]) -> Offload:
        shares = np.frombuffer(base64.b64decode(facts["shares"]), dtype=np.uint8) / _WHOLE
        per_courier = tuple(facts.get("per_courier", ()))
        reflex = Reflex.from_json(facts["reflex"]) if "reflex" in facts else None
        return Offload(shares, facts["functions"], facts["deadline_ms"], per_courier, reflex)


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
    """What goes to functions of the segment that ends in this step; None: nothing."""

    @property
    def channels(self) -> int:
        """How many each courier has to each host: where functions help, what they make of rows has
        one of its own."""
        return 1 if self.offload is None else 2

    def to_json(self) -> dict[str, object]:
        """A plan goes to every task as a Spark property: what says nothing is left out."""
        facts: dict[str, object] = {
            "step": self.step,
            "routes": self.routes.to_json(),
            "endpoints": list(self.endpoints),
            "time": time_to_json(self.time),
        }
        if self.watched:
            facts["watched"] = list(self.watched)
        if self.two_stage:
            facts["two_stage"] = True
        if self.offload is not None:
            facts["offload"] = self.offload.to_json()
        return facts

    @staticmethod
    def from_json(facts: dict[str, Any]) -> StepRoutes:
        return StepRoutes(
            StepId(facts["step"]),
            RouteTable.from_json(facts["routes"]),
            tuple(facts["endpoints"]),
            time_from_json(facts["time"]),
            tuple(facts.get("watched", ())),
            facts.get("two_stage", False),
            Offload.from_json(facts["offload"]) if "offload" in facts else None,
        )


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
    token: str
    functions: str | None = None
    """How couriers reach functions, as text; None: there are none."""
    map_offloads: tuple[tuple[str, Offload], ...] = ()
    """What goes to functions of segments without a keyed step, by segment."""
    timed: tuple[str, ...] = ()
    """Segments without a keyed step of which couriers tell what they did, and how long that took."""

    def to_text(self) -> str:
        facts: dict[str, object] = {
            "epoch": self.epoch,
            "run": self.run,
            "partitions": self.partitions,
            "driver": self.driver,
            "token": self.token,
            "steps": [step.to_json() for step in self.steps],
        }
        if self.functions is not None:
            facts["functions"] = self.functions
        if self.map_offloads:
            facts["map_offloads"] = {name: told.to_json() for name, told in self.map_offloads}
        if self.timed:
            facts["timed"] = list(self.timed)
        return json.dumps(facts)

    @staticmethod
    def from_text(text: str) -> EpochPlan:
        facts = json.loads(text)
        try:
            return EpochPlan(
                facts["epoch"],
                facts["run"],
                facts["partitions"],
                tuple(StepRoutes.from_json(step) for step in facts["steps"]),
                facts["driver"],
                facts["token"],
                facts.get("functions"),
                tuple(
                    (name, Offload.from_json(told))
                    for name, told in facts.get("map_offloads", {}).items()
                ),
                tuple(facts.get("timed", ())),
            )
        except KeyError as missing:
            raise ProtocolError(f"the plan of an epoch lacks {missing}") from missing


def time_to_json(time: EpochTime) -> dict[str, object]:
    return {
        "epoch": time.epoch,
        "now_ms": time.now_ms,
        "watermark_ms": time.watermark_ms,
        "final": time.final,
    }


def time_from_json(facts: dict[str, object]) -> EpochTime:
    watermark = facts["watermark_ms"]
    assert watermark is None or isinstance(watermark, int)
    return EpochTime(
        int(str(facts["epoch"])), int(str(facts["now_ms"])), watermark, bool(facts["final"])
    )
