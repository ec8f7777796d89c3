"""Checkpoints of a live run that are in progress or complete: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.driver.fleet import SealedHost
from penstock.plan.topology import SlotsMark
from penstock.wire.live import CheckpointMessage, EpochPassed


@dataclass
class Underway:
    """A checkpoint in progress, with the reports received for it so far."""

    message: CheckpointMessage
    hosts: frozenset[str]
    """Hosts that must write their changes for it."""
    couriers: int
    """Number of couriers that it must pass."""
    marks: Mapping[str, SlotsMark]
    """Step -> owners of its slots at this point of the streams."""
    began_ms: float
    """Start of its epoch, in milliseconds since 1970."""
    sent_ms: float
    """End of its epoch, in milliseconds since 1970."""
    sealed: dict[str, SealedHost] = field(default_factory=dict)
    passed: dict[int, EpochPassed] = field(default_factory=dict)
    passed_ms: float = 0.0
    """Time when it had passed the last courier, in milliseconds since 1970."""

    @property
    def whole(self) -> bool:
        return self.sealed.keys() == self.hosts and len(self.passed) == self.couriers

    @property
    def ended(self) -> bool:
        """Whether its epoch is the last one of all input."""
        return all(passed.ended for passed in self.passed.values())

    @property
    def closed(self) -> bool:
        """Whether its epoch has closed all windows."""
        return all(passed.closed for passed in self.passed.values())


class Checkpoints:
    """Collects the reports of hosts and couriers, and returns complete checkpoints in order of epochs."""

    def __init__(self) -> None:
        self._underway: dict[int, Underway] = {}

    def __len__(self) -> int:
        return len(self._underway)

    def begin(self, checkpoint: Underway) -> None:
        self._underway[checkpoint.message.epoch] = checkpoint

    def seal(self, epoch: int, host: SealedHost) -> None:
        self._underway[epoch].sealed[host.host] = host

    def passed(self, passed: EpochPassed, now_ms: float) -> None:
        here = self._underway[passed.epoch]
        here.passed[passed.courier], here.passed_ms = passed, now_ms

    def take(self) -> list[Underway]:
        """Remove and return the oldest checkpoints, up to the first incomplete one."""
        whole = []
        for epoch in sorted(self._underway):
            if not self._underway[epoch].whole:
                break
            whole.append(self._underway.pop(epoch))
        return whole

    @property
    def oldest(self) -> Underway | None:
        """The oldest checkpoint in progress, or None."""
        return self._underway[min(self._underway)] if self._underway else None
