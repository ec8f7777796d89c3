"""What hosts and functions cost, in US dollars. Settings: other places have other prices.

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
    """What a host of one core costs, busy or idle."""

    per_hour: float = 0.063
    """A quarter of an r5.xlarge on demand, which has 4 cores for 0.252."""

    def money(self, host_seconds: float) -> float:
        """Of hosts that were up for so many seconds, all together."""
        return self.per_hour * host_seconds / _SECONDS_PER_HOUR


@dataclass(frozen=True)
class FunctionPrice:
    """What functions cost: by the time that they work, and by invocation."""

    per_gb_second: float = 0.0000166667
    """Of AWS Lambda on x86."""
    memory_mb: int = 1_769
    """What Lambda gives one whole core to."""
    per_million: float = 0.20
    """Invocations."""

    def money(self, invocations: int, seconds: float) -> float:
        """Of so many invocations that took so many seconds, all together."""
        gb_seconds = seconds * self.memory_mb / _MB_PER_GB
        return self.per_gb_second * gb_seconds + self.per_million * invocations / _MILLION

    @property
    def per_hour(self) -> float:
        """Of one function that works all the time: to compare with a host."""
        return self.money(0, _SECONDS_PER_HOUR)
