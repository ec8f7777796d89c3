"""What hosts and burst workers cost, in US dollars. Prices are settings: other places have others.

>>> HostPrice().money(host_seconds=3600)
0.063
>>> round(FunctionPrice().money(invocations=1_000_000, seconds=3600), 4)
0.3037
"""

from __future__ import annotations

from dataclasses import dataclass

_MB_PER_GB = 1024
_SECONDS_PER_HOUR = 3600
_MILLION = 1_000_000


@dataclass(frozen=True)
class HostPrice:
    """The price of a host with one core, busy or idle."""

    per_hour: float = 0.063
    """US dollars. A quarter of an r5.xlarge on demand, which has 4 cores for 0.252."""

    def money(self, host_seconds: float) -> float:
        """US dollars for hosts that were up for this many seconds in total."""
        return self.per_hour * host_seconds / _SECONDS_PER_HOUR


@dataclass(frozen=True)
class FunctionPrice:
    """The price of burst workers: by working time and by invocation."""

    per_gb_second: float = 0.0000166667
    """US dollars, as AWS Lambda asks on x86."""
    memory_mb: int = 1_769
    """Memory of a burst worker. Lambda gives one whole core to this much."""
    per_million: float = 0.20
    """US dollars per million invocations."""

    def money(self, invocations: int, seconds: float) -> float:
        """US dollars for these invocations, which took this many seconds in total."""
        gb_seconds = seconds * self.memory_mb / _MB_PER_GB
        return self.per_gb_second * gb_seconds + self.per_million * invocations / _MILLION

    @property
    def per_hour(self) -> float:
        """US dollars for one burst worker that works all the time: to compare with a host."""
        return self.money(0, _SECONDS_PER_HOUR)


@dataclass(frozen=True)
class Usage:
    """What burst workers have done, and what it cost.

    >>> Usage(invocations=2, seconds=0.5) + Usage(invocations=1, cold_starts=1)
    Usage(invocations=3, seconds=0.5, cold_starts=1, cold_start_ms=0.0, failed=0, throttled=0, money=0.0)
    """

    invocations: int = 0
    """Invocations that a burst worker began, including those that failed."""
    seconds: float = 0.0
    """Working time that is billed, in total."""
    cold_starts: int = 0
    cold_start_ms: float = 0.0
    """Time that cold starts took, in total."""
    failed: int = 0
    """Invocations that a burst worker began and did not answer in time, or at all."""
    throttled: int = 0
    """Invocations that were refused because too many burst workers were busy. They cost nothing."""
    money: float = 0.0
    """US dollars."""

    def __add__(self, other: Usage) -> Usage:
        mine, others = vars(self), vars(other)
        return Usage(**{name: mine[name] + others[name] for name in mine})
