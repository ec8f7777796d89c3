"""The live scenarios of `penstock bench switch`, as values.

Hosts have a set service rate, so that two cores can stand for many. Rates are chosen so that a run needs
at most a dozen hosts. With a hotspot, hosts would be half busy if the load were even.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.model import SLA

ONE_SECOND = SLA(1000, 1000)
BALANCER = "autoflow(1s, 0.1)"
"""The policy for hotspots on a fixed number of hosts: it evens out loads even where no latency suffers."""
SWITCH = "switch"


@dataclass(frozen=True)
class LiveScenario:
    """One live run."""

    name: str
    load: str
    """A shape, or "exchange": a quarter of the day's orders, from 40 s before the second opening."""
    seconds: int
    policy: str | None
    """The scaling policy; None if hosts and slots stay as they are."""
    host_rate: float
    """Records per second that a host processes."""
    hosts: int = 1
    """Hosts at the start."""
    at_least: int = 1
    at_most: int = 12
    skew: str = "uniform"
    period_s: int = 0
    """Seconds that a hotspot, or a part of a steady load, lasts; 0 if there is none."""
    warm_up_s: int = 10
    """Seconds at the start of the load that do not count."""
    sla: SLA = ONE_SECOND


def hotspot(share: float, hosts: int, policy: str, period_s: int = 30) -> LiveScenario:
    """A hotspot that moves once, from one host's slots to the next host's."""
    return LiveScenario(
        f"hotspot {share:.0%} on {hosts}",
        f"steady({500 * hosts})",
        2 * period_s,
        policy,
        host_rate=1_000.0,
        hosts=hosts,
        at_least=hosts,
        at_most=hosts,
        skew=f"hotspot({share}, {hosts}, 1, {period_s}s)",
        period_s=period_s,
    )


BURST = LiveScenario("burst", "burst(1200, 5, 60s, 60s)", 180, SWITCH, host_rate=2_000.0)
SINE = LiveScenario("sine", "sine(3000, 2000, 60s)", 130, SWITCH, host_rate=2_000.0, hosts=3)
EXCHANGE = LiveScenario("exchange", "exchange", 100, SWITCH, host_rate=300.0, hosts=2)
STEADY = LiveScenario(
    "steady",
    "steps(400 for 20s, 800 for 20s, 1200 for 20s, 1600 for 20s)",
    *(80, None),
    host_rate=1_000.0,
    hosts=2,
    period_s=20,
)
"""Hosts at 20, 40, 60 and 80 % load, to compare projections with."""

FULL = (
    BURST,
    SINE,
    *(hotspot(share, hosts, BALANCER) for hosts in (3, 5) for share in (0.5, 0.8)),
    hotspot(0.5, 3, SWITCH),
    hotspot(0.8, 5, SWITCH),
    EXCHANGE,
    STEADY,
)
QUICK = (
    replace(BURST, load="burst(600, 3, 15s, 10s)", seconds=35),
    replace(SINE, load="sine(1500, 1000, 20s)", seconds=30, hosts=2),
    hotspot(0.5, 3, BALANCER, period_s=15),
    replace(STEADY, load="steps(400 for 10s, 1200 for 10s)", seconds=20, period_s=10),
)
CORES = 16
"""Spark task slots: a dozen hosts and the couriers."""
