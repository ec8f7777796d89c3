"""Settings of the simulated data plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.control.money import HostPrice
from penstock.errors import SettingError
from penstock.model import StepId
from penstock.sim.burst_workers import WorkerPlane

Engine = Literal["continuous", "epochs"]


@dataclass(frozen=True)
class Plane:
    """What hosts, treatments and the engine are like. Times are milliseconds.

    >>> Plane(service_rate=500.0).engine
    'continuous'
    >>> Plane(beta=2.0)
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: a beta of 2. What to do: use a probability, 0 to 1
    """

    service_rate: float = 1000.0
    """Records a second of useful time, of an ordinary host."""
    alpha: float = 1.0
    """How fast a host of the other kind is, as a multiple of `service_rate`."""
    beta: float = 0.0
    """Probability that a host is of the other kind."""
    start_host_ms: float = 1000.0
    """Until a host that was asked for is there. It is paid for from the beginning."""
    switch_ms: float = 300.0
    """How long the hosts pause that give or get slots, all of them that change at one moment."""
    move_slot_ms: float = 0.0
    """How much longer for each slot that a host gives or gets: its state."""
    take_slot_ms: float | None = None
    """The same for each slot that it gets, if its way in is narrower than the way out."""
    engine: Engine = "continuous"
    """Record by record, or in epochs, one right after the other."""
    epoch_cost_ms: float = 250.0
    """What an epoch takes however little it brings. Only for an engine of epochs."""
    revises: bool = False
    """Whether still more hosts can be asked for while all that is under way waits for hosts, and
    burst workers can be given more or less, as in the live loop. Only for an engine of epochs."""
    lost_samples: float = 0.0
    """Probability that the counters of a host are missing when they are asked for. Only for a
    continuous engine: an epoch is not done before all hosts have answered."""
    burst_workers: WorkerPlane | None = None
    """Burst workers that may help the first step. Only for an engine of epochs."""
    host_price: HostPrice = field(default_factory=HostPrice)

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise SettingError(
                f"no engine {self.engine!r}", hint=f"use {' or '.join(get_args(Engine))}"
            )
        for name in ("beta", "lost_samples"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise SettingError(f"a {name} of {value:g}", hint="use a probability, 0 to 1")
        for name in ("service_rate", "alpha"):
            value = getattr(self, name)
            if value <= 0:
                raise SettingError(f"a {name} of {value:g}", hint="use more than 0")
        for name in ("start_host_ms", "switch_ms", "move_slot_ms", "take_slot_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(f"a {name} of {value:g}", hint="use 0 or more milliseconds")
        if self.engine == "epochs" and self.epoch_cost_ms < 1:
            raise SettingError(
                f"an epoch cost of {self.epoch_cost_ms:g} ms",
                hint="use 1 ms or more: epochs without a cost would be without end",
            )
        if self.engine != "epochs" and (self.burst_workers is not None or self.revises):
            raise SettingError(
                "functions, or treatments that change, for a continuous engine",
                hint="they are simulated for an engine of epochs: choose that",
            )


@dataclass(frozen=True)
class Following:
    """A step that takes in what the step before it puts out.

    >>> Following(StepId("count"), slots=4, fan_out=10.0).shares
    (0.25, 0.25, 0.25, 0.25)
    """

    step: StepId
    slots: int = 64
    fan_out: float = 1.0
    """Records that it gets for each one that the step before it completes."""
    weights: tuple[float, ...] = ()
    """How much each slot gets, compared with the others; none: all alike."""
    service_rate: float | None = None
    """Records a second that one of its hosts can take; None: that of the plane."""
    hosts: int = 1
    """In the beginning."""
    policy: str | None = None
    """Policy that its hosts follow; None: that of the first step."""
    plane: Plane | None = None
    """What its hosts and treatments are like; None: as those of the first step."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of all its records that each slot gets."""
        weights = self.weights or (1.0,) * self.slots
        total = sum(weights)
        return tuple(weight / total for weight in weights)

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != self.slots or min(self.weights) < 0):
            raise SettingError(
                f"{len(self.weights)} weights for the {self.slots} slots of {self.step}",
                hint="give one for each slot, none below 0",
            )
