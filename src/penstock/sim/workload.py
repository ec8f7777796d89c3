"""Workloads for the simulator, by name or as text: a load over time and over slots.

    exchange                        a day of a stock exchange: 14,854,215 orders in 4 hours. This one, like
                                    others of installed packages, is found by entry points
    sine, burst, ramp, steady       a shape of that kind with preset values
    hotspot                         a steady load with a hot part that moves
    sine(30000, 10000, 600s)        any shape in the form of `penstock.sim.shapes`
    wordcount                       sentences at a varying rate, split into words that are counted

Each workload comes with a service rate and a number of hosts that suit it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.examine.vitals import Floats
from penstock.errors import SettingError
from penstock.extensions import extension, extension_names
from penstock.model import StepId
from penstock.sim.plane import Following
from penstock.sim.shapes import Shape, shape
from penstock.sim.skews import Skew, skew
from penstock.sim.trace import Trace


@dataclass(frozen=True)
class Workload:
    """Arrivals at a first step, and the steps that follow it, if any."""

    trace: Trace = field(repr=False)
    service_rate: float
    """Service rate of a host of the first step, in records per second."""
    hosts: int = 1
    """Number of hosts of the first step at the start."""
    step: str = "step"
    following: tuple[Following, ...] = ()


_SHAPES = {
    "sine": ("sine(30000, 10000, 600s)", "uniform", 4000.0),
    "burst": ("burst(4000, 5, 60s, 60s, 300s)", "uniform", 2000.0),
    "ramp": ("ramp(2000, 20000, 300s)", "uniform", 2000.0),
    "steady": ("steady(10000)", "uniform", 2000.0),
    "hotspot": ("steady(10000)", "hotspot(0.5, 5, 1, 60s)", 3000.0),
}
_WORDS = 10.0
"""Number of words in a sentence."""


def names() -> tuple[str, ...]:
    """Names of the workloads.

    >>> names()
    ('exchange', 'sine', 'burst', 'ramp', 'steady', 'hotspot', 'wordcount')
    """
    return ("exchange", *_SHAPES, "wordcount")


def workload(
    text: str,
    slots: int = 64,
    delta_ms: float = 100.0,
    seconds: float | None = None,
    over: str | Skew | None = None,
    seed: int = 1,
) -> Workload:
    """The workload with this name, or of a shape's text.

    `seconds` is its length; None for a whole day of the exchange, or 20 minutes of others. `over` is the skew
    over slots, in the form of `penstock.sim.skews`; None for the workload's own.

    >>> sine = workload("sine(1000, 500, 60s)", slots=8, seconds=60)
    >>> round(sine.trace.total, -4), sine.trace.slots
    (60000, 8)
    """
    if text == "exchange" or text in extension_names("penstock.workloads"):
        whole: Workload = extension("penstock.workloads", text)(slots, delta_ms, seed)
        return whole if seconds is None else replace(whole, trace=whole.trace.cut(to_s=seconds))
    seconds = 1200.0 if seconds is None else seconds
    if text == "wordcount":
        sentences = shaped(
            shape("sine(15000, 3750, 300s)"), skew("uniform"), slots, delta_ms, seconds, seed
        )
        words = tuple(skew(over or "zipf(0.2)").weights(slots).tolist())
        count = Following(StepId("count"), slots, _WORDS, words, service_rate=9_000.0, hosts=20)
        return Workload(sentences, 1_800.0, 10, "split", (count,))
    load, uneven, rate = _SHAPES.get(text, (text, "uniform", 1000.0))
    try:
        over_time = shape(load)
    except SettingError as error:
        raise SettingError(
            f"unknown workload {text!r}", hint=f"use one of {', '.join(names())}, or {error.hint}"
        ) from error
    return Workload(shaped(over_time, skew(over or uneven), slots, delta_ms, seconds, seed), rate)


def shaped(
    load: Shape, over: Skew, slots: int, delta_ms: float, seconds: float, seed: int
) -> Trace:
    """Poisson arrivals with this shape over time and this skew over slots."""
    ends_ms = np.arange(1, round(seconds * 1000 / delta_ms) + 1) * delta_ms
    expected = np.diff(load.cumulative(ends_ms), prepend=0)
    middle_s: Floats = np.asarray((ends_ms - delta_ms / 2) / 1000.0, dtype=np.float64)
    phases = over.phase(middle_s)
    weights = np.empty((len(ends_ms), slots))
    for phase in np.unique(phases):
        at = np.flatnonzero(phases == phase)
        weights[at] = over.weights(slots, float(middle_s[at[0]]))
    rates = expected[:, None] * weights * (1000.0 / delta_ms)
    return Trace.of_rates(rates, delta_ms, seed)
