"""Which checkpoints of a live run are under way, and which are whole: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.driver.fleet import SealedHost
from penstock.plan.topology import SlotsMark
from penstock.wire.live import CheckpointMessage, EpochPassed


@dataclass
class Underway:
    """A checkpoint that couriers were told of, and what has come of it so far."""

    told: CheckpointMessage
    hosts: frozenset[str]
    """Hosts that write what changed on them."""
    couriers: int
    marks: Mapping[str, SlotsMark]
    """step -> where its slots are at this point of the streams."""
    began_ms: float
    sent_ms: float
    """When its epoch began and ended, as time of day."""
    sealed: dict[str, SealedHost] = field(default_factory=dict)
    passed: dict[int, EpochPassed] = field(default_factory=dict)
    passed_ms: float = 0.0
    """When it was through the last courier."""

    @property
    def whole(self) -> bool:
        return self.sealed.keys() == self.hosts and len(self.passed) == self.couriers

    @property
    def ended(self) -> bool:
        """Whether all input has ended with its epoch."""
        return all(passed.ended for passed in self.passed.values())

    @property
    def closed(self) -> bool:
        """Whether all windows have closed with its epoch."""
        return all(passed.closed for passed in self.passed.values())


class Checkpoints:
    """Collects what hosts and couriers tell of checkpoints; gives whole ones, in order of epochs."""

    def __init__(self) -> None:
        self._underway: dict[int, Underway] = {}

    def __len__(self) -> int:
        return len(self._underway)

    def begin(self, checkpoint: Underway) -> None:
        self._underway[checkpoint.told.epoch] = checkpoint

    def seal(self, epoch: int, host: SealedHost) -> None:
        self._underway[epoch].sealed[host.host] = host

    def passed(self, passed: EpochPassed, now_ms: float) -> None:
        here = self._underway[passed.epoch]
        here.passed[passed.courier], here.passed_ms = passed, now_ms

    def take(self) -> list[Underway]:
        """The oldest ones, as far as they are whole."""
        whole = []
        for epoch in sorted(self._underway):
            if not self._underway[epoch].whole:
                break
            whole.append(self._underway.pop(epoch))
        return whole

    @property
    def oldest(self) -> Underway | None:
        """The one that was told first; None: none is under way."""
        return self._underway[min(self._underway)] if self._underway else None
