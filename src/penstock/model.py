"""Penstock's basic value types: slots, hosts, steps, epochs, the SLA, dead letters.

This module has no clock, no I/O and no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from penstock.errors import FlowError

Slot = NewType("Slot", int)
HostId = NewType("HostId", str)
StepId = NewType("StepId", str)
Epoch = NewType("Epoch", int)

_UNITS = {
    "ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000,
    "d": 86_400_000, "day": 86_400_000,
}  # fmt: skip
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$", re.IGNORECASE)


_MOST_MS = 10**13
"""Milliseconds of the longest duration allowed, 317 years. A sum of a few of them, in microseconds, fits
64 bits."""


def milliseconds(duration: str | float | int) -> int:
    """Convert a duration to milliseconds, from text with a unit or from a number of seconds.

    >>> milliseconds("1s"), milliseconds("250 ms"), milliseconds("2 minutes"), milliseconds(0.5)
    (1000, 250, 120000, 500)
    """
    if isinstance(duration, (int, float)):
        return _whole(duration, duration * 1000)
    match = _DURATION.match(duration)
    word = match.group(2).lower() if match else ""
    unit = _UNITS.get(word, _UNITS.get(word.removesuffix("s")))
    if match is None or unit is None:
        raise FlowError(
            f"{duration!r} is not a duration",
            hint='write for example "1s", "250 ms" or "2 minutes"',
        )
    return _whole(duration, float(match.group(1)) * unit)


def _whole(duration: object, ms: float) -> int:
    if not abs(ms) <= _MOST_MS:  # also true for NaN
        raise FlowError(f"the duration {duration!r} is too long", hint="use 300 years at most")
    return round(ms)


@dataclass(frozen=True)
class LatencyBound:
    """A bound on latency: the average, or the 99th percentile, over any window is at most `latency_ms`.

    >>> print(LatencyBound(2000, 1000, p99=True, step="clicks"))
    step clicks: p99 latency <= 2000 ms over any 1000 ms
    """

    latency_ms: int
    """Highest latency, in milliseconds."""
    window_ms: int
    """Length of the window that latency is measured over, in milliseconds."""
    p99: bool = False
    """Whether it bounds the 99th percentile of the rows' latencies, instead of their average."""
    step: str | None = None
    """Name of the keyed step whose latency it bounds; None: the latency from arrival to the sink."""

    def __post_init__(self) -> None:
        if self.latency_ms <= 0 or self.window_ms <= 0:
            raise FlowError(
                f"an SLA has a latency of {self.latency_ms} ms over {self.window_ms} ms",
                hint='use durations above zero, such as latency="1s", window="1s"',
            )

    def __str__(self) -> str:
        of = "" if self.step is None else f"step {self.step}: "
        what = "p99" if self.p99 else "average"
        return f"{of}{what} latency <= {self.latency_ms} ms over any {self.window_ms} ms"


@dataclass(frozen=True)
class SLA(LatencyBound):
    """A latency goal: one bound, and others that are kept at the same time.

    >>> print(SLA(1000, 1000, more=(LatencyBound(3000, 1000, p99=True),)))
    average latency <= 1000 ms over any 1000 ms; p99 latency <= 3000 ms over any 1000 ms
    """

    more: tuple[LatencyBound, ...] = ()

    @property
    def bounds(self) -> tuple[LatencyBound, ...]:
        """All bounds."""
        return (LatencyBound(self.latency_ms, self.window_ms, self.p99, self.step), *self.more)

    def of_step(self, step: str) -> tuple[LatencyBound, ...]:
        """Bounds on the latency of one step alone."""
        return tuple(bound for bound in self.bounds if bound.step == step)

    def with_bound(self, bound: LatencyBound) -> SLA:
        """The SLA with one more bound, which replaces one of the same kind and step."""
        others = (b for b in self.bounds if (b.p99, b.step) != (bound.p99, bound.step))
        return sla_of([*others, bound])

    def __str__(self) -> str:
        return "; ".join(map(str, self.bounds))


def sla_of(bounds: Sequence[LatencyBound]) -> SLA:
    """The SLA of these bounds, of which there is at least one. Bounds of the whole flow come first, and of
    these the average."""
    first, *more = sorted(bounds, key=lambda bound: (bound.step is not None, bound.p99))
    return SLA(first.latency_ms, first.window_ms, first.p99, first.step, tuple(more))


@dataclass(frozen=True)
class DeadLetter:
    """A row that user code or a keyed step failed on, set aside with its error."""

    step: str
    key: str
    row: str
    """The row as JSON text."""
    error: str


@dataclass(frozen=True)
class LateRows:
    """Rows that arrived behind the watermark of a step."""

    step: str
    input: int
    count: int
    stream: bytes = b""
    """The rows as an Arrow stream; empty if no sink takes late rows."""
