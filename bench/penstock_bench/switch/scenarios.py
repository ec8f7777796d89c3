"""The live scenarios of `penstock bench switch`, as values.

Hosts have a set service rate, so that two cores can stand for many. Rates are chosen so that a run needs
at most a dozen hosts. With a hotspot, hosts would be half busy if the load were even. Unpaced scenarios have
hosts as fast as they are, and the load is about what two cores carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.model import SLA

Workload = Literal["sums", "exchange", "q2", "q5", "words", "bids"]
"""What arrives, and the flow on it; see `workloads.py`."""

ONE_SECOND = SLA(1000, 1000)
BALANCER = "autoflow(1s, 0.1)"
"""The policy for hotspots on a fixed number of hosts: it evens out loads even where no latency suffers."""
SWITCH = "switch"


@dataclass(frozen=True)
class LiveScenario:
    """One live run."""

    name: str
    load: str
    """A shape. The exchange has its own."""
    seconds: int
    policy: str | None
    """The scaling policy; None if hosts and slots stay as they are."""
    host_rate: float | Mapping[str, float] | None
    """Records per second that a host processes, of every step or by step; None if hosts are unpaced."""
    workload: Workload = "sums"
    seed: int = 1
    hosts: int = 1
    """Hosts of each step at the start."""
    at_least: int = 1
    at_most: int = 12
    skew: str = "uniform"
    period_s: int = 0
    """Seconds that a hotspot, or a part of a steady load, lasts; 0 if there is none."""
    warm_up_s: int = 10
    """Seconds at the start of the load that do not count."""
    sla: SLA = ONE_SECOND
    start_s: float = 7_170.0
    """The exchange: second of the day at which the load begins, by default 30 s before the second opening."""
    one_in: int = 4
    """The exchange: one order in so many arrives."""
    speed: float = 1.0
    """The exchange: seconds of the day that pass in a second."""


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
STEADY = LiveScenario(
    "steady",
    "steps(400 for 20s, 800 for 20s, 1200 for 20s, 1600 for 20s)",
    *(80, None),
    host_rate=1_000.0,
    hosts=2,
    period_s=20,
)
"""Hosts at 20, 40, 60 and 80 % load, to compare projections with."""
EXCHANGE = LiveScenario("exchange", "", 90, SWITCH, 300.0, "exchange", hosts=2)
SESSION = LiveScenario(
    *("session", "", 1_440, SWITCH, 290.0, "exchange"),
    hosts=4,
    at_most=16,
    start_s=0.0,
    one_in=10,
    speed=10.0,
)
"""The four hours of the day at ten times the speed, one order in ten: as many orders per second as in the
day, and as many per host as in the simulation. The bound is 1 s of the faster time."""
NEXMARK = LiveScenario(
    *("nexmark", "sine(3000, 2000, 40s)", 90, SWITCH, 2_000.0, "q2"),
    hosts=3,
    at_most=6,
)
"""q2 as a keyed step, as in StreamSwitch's evaluation. The generator is scaled down: no auction is hot."""
WORD_COUNT = LiveScenario(
    *("wordcount", "sine(400, 200, 40s)", 90, SWITCH),
    host_rate={"process-1": 300.0, "aggregate-2": 2_400.0},
    workload="words",
    hosts=2,
    at_most=5,
)
SKEWED = LiveScenario(
    *("skewed", "steady(3000)", 90, SWITCH, 1_000.0, "bids"),
    hosts=4,
    skew="hotspot(0.5, 4, 1, 30s)",
)
"""The skewed sum: half of the bids on a quarter of the slots, on another quarter every 30 s. Hosts may come
and go."""
UNPACED = {
    "nexmark": LiveScenario(
        *("q5, unpaced", "sine(60000, 40000, 40s)", 80, SWITCH, None, "q5"), at_most=4
    ),
    "wordcount": LiveScenario(
        *("words, unpaced", "sine(6000, 4000, 40s)", 80, SWITCH, None, "words"), at_most=4
    ),
    "skewed": LiveScenario(
        *("skewed, unpaced", "sine(60000, 40000, 40s)", 80, SWITCH, None, "bids"),
        at_most=4,
        skew="hotspot(0.5, 4, 1, 30s)",
    ),
}
"""Hosts as fast as they are, with combining couriers, and rates near what two cores carry. Bids are those of
the benchmark: half of them are on a hot auction."""

WARM_UP = LiveScenario(
    "warm-up", "burst(1200, 4, 12s, 8s)", 25, SWITCH, host_rate=1_000.0, at_most=8
)
"""A first run that warms up a new session and does not count: a JVM gets faster for minutes."""


def seeds(scenario: LiveScenario, count: int = 3) -> tuple[LiveScenario, ...]:
    """The scenario with the first `count` seeds."""
    return tuple(replace(scenario, seed=seed) for seed in range(1, count + 1))


def shorter(scenarios: Sequence[LiveScenario], seconds: int) -> tuple[LiveScenario, ...]:
    """The first of these scenarios, for so many seconds."""
    return tuple(replace(one, seconds=seconds) for one in scenarios[:1])


FULL: dict[str, tuple[LiveScenario, ...]] = {
    "live": (
        BURST,
        SINE,
        *(hotspot(share, hosts, BALANCER) for hosts in (3, 5) for share in (0.5, 0.8)),
        hotspot(0.5, 3, SWITCH),
        hotspot(0.8, 5, SWITCH),
        STEADY,
    ),
    "live-exchange": seeds(EXCHANGE),
    "live-nexmark": seeds(NEXMARK),
    "live-wordcount": seeds(WORD_COUNT),
    "live-skewed": seeds(SKEWED),
    **{f"live-unpaced-{part}": seeds(one) for part, one in UNPACED.items()},
    "live-hour": (replace(SESSION, name="hour", seconds=360),),
    "live-session": (SESSION,),
}
"""The live runs by part of the benchmark. The hour is the first of the session."""
QUICK: dict[str, tuple[LiveScenario, ...]] = {
    **{part: shorter(scenarios, 30) for part, scenarios in FULL.items()},
    "live": (
        replace(BURST, load="burst(600, 3, 15s, 10s)", seconds=35),
        replace(SINE, load="sine(1500, 1000, 20s)", seconds=30, hosts=2),
        hotspot(0.5, 3, BALANCER, period_s=15),
        replace(STEADY, load="steps(400 for 10s, 1200 for 10s)", seconds=20, period_s=10),
    ),
    "live-exchange": shorter((EXCHANGE,), 60),
}
CORES = 20
"""Spark task slots: sixteen hosts and the couriers."""
