"""Costs in US dollars: prices, the cost of a run so far, and when hosts are cheaper than burst workers.

Prices are settings, since they differ between clouds and regions.

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
    """US dollars per hour. A quarter of an r5.xlarge on demand, which has 4 cores for 0.252."""

    def money(self, host_seconds: float) -> float:
        """US dollars for hosts that were up for this many seconds in total."""
        return self.per_hour * host_seconds / _SECONDS_PER_HOUR


@dataclass(frozen=True)
class FunctionPrice:
    """The price of burst workers: by working time and by invocation."""

    per_gb_second: float = 0.0000166667
    """US dollars per GB-second. The price of AWS Lambda on x86."""
    memory_mb: int = 1_769
    """Memory of a burst worker in MB. Lambda assigns one whole core to this much."""
    per_million: float = 0.20
    """US dollars per million invocations."""

    def money(self, invocations: int, seconds: float) -> float:
        """US dollars for these invocations, which took this many seconds in total."""
        gb_seconds = seconds * self.memory_mb / _MB_PER_GB
        return self.per_gb_second * gb_seconds + self.per_million * invocations / _MILLION

    @property
    def per_hour(self) -> float:
        """US dollars per hour for one burst worker that is always busy, to compare with a host."""
        return self.money(0, _SECONDS_PER_HOUR)


@dataclass(frozen=True)
class Costs:
    """Prices, and the minimum time that a host is paid for."""

    host: HostPrice = field(default_factory=HostPrice)
    worker: FunctionPrice = field(default_factory=FunctionPrice)
    least_host_ms: float = 120_000.0
    """Milliseconds from the request for a host until it can end: its start, the minimum billed time, and
    the time that a policy keeps it in case the load returns."""


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
        """US dollars by item for the journal and `penstock ctl`, rounded."""
        facts = {"hosts": self.hosts, "functions": self.functions, "total": self.total}
        return {name: round(usd, 6) for name, usd in facts.items()}


class Spending:
    """Adds up the cost of a run: hosts by their uptime, burst workers by their bill.

    >>> spending = Spending(HostPrice(per_hour=3.6))
    >>> spending.note(0.0, hosts=2)
    >>> spending.note(10_000.0, hosts=5)
    >>> spending.note(11_000.0, hosts=5, workers=0.25)
    >>> str(spending.money)
    '0.2750 USD: hosts 0.0250, functions 0.2500'
    """

    def __init__(self, host: HostPrice | None = None) -> None:
        self._host = host or HostPrice()
        self._last: tuple[float, int] | None = None
        self._host_seconds = 0.0
        self._workers = 0.0

    def note(self, now_ms: float, hosts: int, workers: float | None = None) -> None:
        """Record the number of hosts from now on.

        `workers` is the cost of burst workers so far in US dollars; None if it is unknown.
        """
        if self._last is not None:
            since_ms, running = self._last
            self._host_seconds += running * max(0.0, now_ms - since_ms) / 1000.0
        self._last = (now_ms, hosts)
        if workers is not None:
            self._workers = workers

    @property
    def money(self) -> Money:
        return Money(self._host.money(self._host_seconds), self._workers)


class BreakEven:
    """Compares the cost of burst workers in one burst with the cost of hosts in their place.

    Nobody knows how long a burst will last. Switching to hosts as soon as burst workers have cost as much as
    hosts would have is never much more expensive than the cheaper of the two.

    >>> even = BreakEven(Costs(least_host_ms=60_000.0))
    >>> even.note(0.0, hosts=10, worker_seconds=0.0)
    >>> even.note(30_000.0, hosts=10, worker_seconds=300.0)
    >>> even.reached
    False
    >>> even.note(40_000.0, hosts=10, worker_seconds=400.0)
    >>> even.reached
    True
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._most = 0
        self._host_seconds = 0.0
        self._workers = 0.0
        self._last: tuple[float, int] | None = None

    def note(
        self, now_ms: float, hosts: int, worker_seconds: float, spent: float | None = None
    ) -> None:
        """Record how many hosts would be needed in place of burst workers from now on.

        `worker_seconds` is the total working time of burst workers in this burst. `spent` is their cost
        in this burst in US dollars; if it is known, `worker_seconds` is ignored.
        """
        if self._last is not None:
            since_ms, needed = self._last
            self._host_seconds += needed * (now_ms - since_ms) / 1000.0
        self._last = (now_ms, hosts)
        self._most = max(self._most, hosts)
        self._workers = self._costs.worker.money(0, worker_seconds) if spent is None else spent

    @property
    def reached(self) -> bool:
        """Whether burst workers have cost more than hosts would have.

        Hosts are paid while they are needed, and for the minimum time in any case.
        """
        least = self._most * self._costs.least_host_ms / 1000.0
        return self._workers > self._costs.host.money(max(self._host_seconds, least))
