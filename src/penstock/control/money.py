"""Money, in US dollars: prices, what a run has cost so far, and when hosts are cheaper than functions.

Prices are settings: other places have other ones.

>>> HostPrice().money(host_seconds=3600)
0.063
>>> round(FunctionPrice().money(invocations=1_000_000, seconds=3600), 4)
0.3037
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
class Costs:
    """Prices, and how long a host is paid for at least."""

    host: HostPrice = field(default_factory=HostPrice)
    function: FunctionPrice = field(default_factory=FunctionPrice)
    least_host_ms: float = 120_000.0
    """From when a host is asked for until it can be gone again: its start, the least time that is
    billed, and the time for which a policy keeps it to be sure."""


@dataclass(frozen=True)
class Money:
    """US dollars spent so far.

    >>> str(Money(hosts=0.0175, functions=0.0042))
    '0.0217 USD: hosts 0.0175, functions 0.0042'
    """

    hosts: float = 0.0
    functions: float = 0.0

    @property
    def total(self) -> float:
        return self.hosts + self.functions

    def __str__(self) -> str:
        return f"{self.total:.4f} USD: hosts {self.hosts:.4f}, functions {self.functions:.4f}"

    def facts(self) -> dict[str, float]:
        """As the journal and `penstock ctl` have it, rounded."""
        facts = {"hosts": self.hosts, "functions": self.functions, "total": self.total}
        return {name: round(usd, 6) for name, usd in facts.items()}


class Spending:
    """Adds up what a run costs: hosts by the time that they are there, functions as they are billed.

    >>> spending = Spending(HostPrice(per_hour=3.6))
    >>> spending.note(0.0, hosts=2)
    >>> spending.note(10_000.0, hosts=5)
    >>> spending.note(11_000.0, hosts=5, functions=0.25)
    >>> str(spending.money)
    '0.2750 USD: hosts 0.0250, functions 0.2500'
    """

    def __init__(self, host: HostPrice | None = None) -> None:
        self._host = host or HostPrice()
        self._last: tuple[float, int] | None = None
        self._host_seconds = 0.0
        self._functions = 0.0

    def note(self, now_ms: float, hosts: int, functions: float | None = None) -> None:
        """From now on there are so many hosts; burst workers have cost so much by now, if that is known."""
        if self._last is not None:
            since_ms, there = self._last
            self._host_seconds += there * max(0.0, now_ms - since_ms) / 1000.0
        self._last = (now_ms, hosts)
        if functions is not None:
            self._functions = functions

    @property
    def money(self) -> Money:
        return Money(self._host.money(self._host_seconds), self._functions)


class BreakEven:
    """Whether functions have cost more, in one burst, than hosts in their place would have.

    Nobody knows how long a burst will be. To turn to hosts as soon as functions have cost what hosts
    would have, which are paid for some time at least, is never much dearer than the better of both.

    >>> even = BreakEven(Costs(least_host_ms=60_000.0))
    >>> even.note(0.0, hosts=10, function_seconds=0.0)
    >>> even.note(30_000.0, hosts=10, function_seconds=300.0)
    >>> even.reached
    False
    >>> even.note(40_000.0, hosts=10, function_seconds=400.0)
    >>> even.reached
    True
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._most = 0
        self._host_seconds = 0.0
        self._functions = 0.0
        self._last: tuple[float, int] | None = None

    def note(
        self, now_ms: float, hosts: int, function_seconds: float, spent: float | None = None
    ) -> None:
        """So many hosts would do instead, from now on.

        `function_seconds` is the time that burst workers worked in this burst, all together; if what
        they have cost in it is known, as `spent`, that counts instead.
        """
        if self._last is not None:
            since_ms, needed = self._last
            self._host_seconds += needed * (now_ms - since_ms) / 1000.0
        self._last = (now_ms, hosts)
        self._most = max(self._most, hosts)
        self._functions = (
            self._costs.function.money(0, function_seconds) if spent is None else spent
        )

    @property
    def reached(self) -> bool:
        """Hosts are paid for as long as they are needed, and for the least time in any case."""
        least = self._most * self._costs.least_host_ms / 1000.0
        return self._functions > self._costs.host.money(max(self._host_seconds, least))
