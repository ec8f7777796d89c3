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

    def to_text(self) -> str:
        return json.dumps(
            {
                "epoch": self.epoch,
                "run": self.run,
                "partitions": self.partitions,
                "driver": self.driver,
                "token": self.token,
                "steps": [step.to_json() for step in self.steps],
            }
        )

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
