"""What goes over the wire: JSON headers around Arrow batches. Never a pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from penstock.operators.operator import DeadLetter, EpochTime
from penstock.plan.epoch import EpochPlan, time_from_json, time_to_json

CLOSE = b"close "
"""With the kind of the batches behind it, ends a channel's input. Without it the stream broke off, and
what it brought is dropped."""


@dataclass(frozen=True)
class ChannelHeader:
    """Names one courier task attempt's conversation with one host about one epoch."""

    epoch: int
    run: int
    step: str
    partition: int
    attempt: int
    """Spark's task attempt id: unique for each try of a task within an application."""
    partitions: int
    time: EpochTime

    def to_bytes(self) -> bytes:
        facts = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "time"}
        return json.dumps(facts | {"time": time_to_json(self.time)}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> ChannelHeader:
        facts: dict[str, Any] = json.loads(data)
        facts["time"] = time_from_json(facts["time"])
        return ChannelHeader(**facts)

    @staticmethod
    def of(plan: EpochPlan, step: int, partition: int, attempt: int) -> ChannelHeader:
        routes = plan.steps[step]
        return ChannelHeader(
            plan.epoch,
            plan.run,
            routes.step,
            partition,
            attempt,
            plan.partitions,
            routes.time,
        )


def dead_to_bytes(dead: list[DeadLetter]) -> bytes:
    return json.dumps([asdict(letter) for letter in dead]).encode()


def dead_from_bytes(data: bytes) -> list[DeadLetter]:
    return [DeadLetter(**facts) for facts in json.loads(data)]
