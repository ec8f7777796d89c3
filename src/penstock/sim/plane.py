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
    """Settings of simulated hosts, treatments and the engine. Times are milliseconds.

    >>> Plane(service_rate=500.0).engine
    'continuous'
    >>> Plane(beta=2.0)
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: beta is 2. What to do: use a probability from 0 to 1
    """

    service_rate: float = 1000.0
    """Service rate of an ordinary host, in records per second of useful time."""
    alpha: float = 1.0
    """Speed of a host of the other kind, as a multiple of `service_rate`."""
    beta: float = 0.0
    """Probability that a host is of the other kind."""
    start_host_ms: float = 1000.0
    """Milliseconds until a requested host is up. It is paid for from the request on."""
    switch_ms: float = 300.0
    """Milliseconds that hosts pause when slots move. All hosts that change at one moment pause together."""
    move_slot_ms: float = 0.0
    """Additional pause for each slot that a host gives or gets, in milliseconds, to copy its state."""
    take_slot_ms: float | None = None
    """Additional pause for each slot that a host gets, if it differs from `move_slot_ms`."""
    engine: Engine = "continuous"
    """Kind of engine: record by record (continuous), or epochs that follow each other at once."""
    epoch_cost_ms: float = 250.0
    """Fixed cost of an epoch in milliseconds. Only for the epochs engine."""
    revises: bool = False
    """Whether control may request more hosts while treatments wait for hosts, and change the load of burst
    workers, as in a real run. Only for the epochs engine."""
    lost_samples: float = 0.0
    """Probability that the counters of a host are missing in a sample. Only for the continuous engine,
    since an epoch waits for the answers of all hosts."""
    burst_workers: WorkerPlane | None = None
    """Burst workers that may help the first step. Only for the epochs engine."""
    host_price: HostPrice = field(default_factory=HostPrice)

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise SettingError(
                f"unknown engine {self.engine!r}", hint=f"use {' or '.join(get_args(Engine))}"
            )
        for name in ("beta", "lost_samples"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise SettingError(f"{name} is {value:g}", hint="use a probability from 0 to 1")
        for name in ("service_rate", "alpha"):
            value = getattr(self, name)
            if value <= 0:
                raise SettingError(f"{name} is {value:g}", hint="use more than 0")
        for name in ("start_host_ms", "switch_ms", "move_slot_ms", "take_slot_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(f"{name} is {value:g}", hint="use 0 or more milliseconds")
        if self.engine == "epochs" and self.epoch_cost_ms < 1:
            raise SettingError(
                f"epoch_cost_ms is {self.epoch_cost_ms:g}",
                hint="use 1 or more: a run with epochs that cost no time would not end",
            )
        if self.engine != "epochs" and (self.burst_workers is not None or self.revises):
            raise SettingError(
                "functions and revised treatments are not simulated for a continuous engine",
                hint="use the epochs engine",
            )


@dataclass(frozen=True)
class Following:
    """A step that reads the output of the step before it.

    >>> Following(StepId("count"), slots=4, fan_out=10.0).shares
    (0.25, 0.25, 0.25, 0.25)
    """

    step: StepId
    slots: int = 64
    fan_out: float = 1.0
    """Number of records for each one that the step before it completes."""
    weights: tuple[float, ...] = ()
    """Relative arrivals of each slot; empty: all equal."""
    service_rate: float | None = None
    """Service rate of a host in records per second; None: that of the plane."""
    hosts: int = 1
    """Number of hosts at the start."""
    policy: str | None = None
    """Policy of the step; None: that of the first step."""
    plane: Plane | None = None
    """Settings of its hosts and treatments; None: those of the first step."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the step's records that each slot gets."""
        weights = self.weights or (1.0,) * self.slots
        total = sum(weights)
        return tuple(weight / total for weight in weights)

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != self.slots or min(self.weights) < 0):
            raise SettingError(
                f"the {self.slots} slots of {self.step} have {len(self.weights)} weights, the least "
                f"is {min(self.weights):g}",
                hint="use one weight for each slot, and none below 0",
            )
