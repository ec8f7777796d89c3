"""What `penstock bench burst` compares: ways to answer a burst, and what a day with bursts costs.

The published names stand beside them: Sponge's figures 10 to 13 have the same sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Side = Literal[
    "no_scaling",
    "new_hosts_30s",
    "new_hosts",
    "hosts_beforehand",
    "functions_migrating",
    "penstock",
    "overprovisioned",
    "routers",
    "routers_transients",
    "no_warm",
]

SIDES: tuple[Side, ...] = get_args(Side)
ONLY_SIMULATED: tuple[Side, ...] = ("routers", "routers_transients", "no_warm")
LIVE: tuple[Side, ...] = tuple(side for side in SIDES if side not in ONLY_SIMULATED)

TITLES: dict[Side, str] = {
    "no_scaling": "no scaling",
    "new_hosts_30s": "new hosts, 30 s",
    "new_hosts": "new hosts",
    "hosts_beforehand": "hosts beforehand",
    "functions_migrating": "functions, migrating",
    "penstock": "Penstock",
    "overprovisioned": "over-provisioned",
    "routers": "routers",
    "routers_transients": "routers, transients",
    "no_warm": "nothing kept warm",
}
"""What tables and pictures call the sides."""

MEANINGS: dict[Side, str] = {
    "no_scaling": "hosts and slots stay as they are (NoScaling)",
    "new_hosts_30s": "the switch adds hosts, each on a machine that takes 30 s to start (VMBase)",
    "new_hosts": "the switch adds hosts, which start as fast as they do here",
    "hosts_beforehand": "hosts for the burst are up and own nothing; slots and state move to them "
    "in the burst (VMInit)",
    "functions_migrating": "functions take over slots as hosts do: task and state stop, move over a "
    "function's 100 Mbit/s and go on; a step whose neighbour across an exchange is on functions "
    "stays (SFBase)",
    "penstock": "rows are redirected to functions kept warm, partial states merged (Sponge)",
    "overprovisioned": "hosts for the whole burst from the beginning (Over)",
    "routers": "as functions_migrating, but neighbouring steps may be on functions (SpongeRO)",
    "routers_transients": "the same without stopping to move tasks; state still moves (SpongeTO)",
    "no_warm": "Penstock with every function started cold (SpongeSnap)",
}
"""One sentence each, for the report."""


DAY_S = 24 * 3600
BURST_SHARE = 0.01
"""The share of a day in which there is a burst: Sponge's example."""


def day(money: Mapping[str, float], share: float = BURST_SHARE) -> float:
    """Dollars for a day of which so much is a burst.

    >>> day({"stable_second": 0.001, "burst_second": 0.011}, 0.1)
    172.8
    """
    mean = (1 - share) * money["stable_second"] + share * money["burst_second"]
    return round(DAY_S * mean, 9)


def per_second(
    hosts: float, functions: float, stable: float, seconds: float, burst_s: float
) -> dict[str, float]:
    """The cost of a stable second and of one of the burst, of a run that cost so much in all.

    A stable second is known. All beyond what `seconds` of those would have cost is the burst's,
    also what is paid after it, such as hosts that are not let go at once.

    >>> per_second(hosts=120.0, functions=30.0, stable=1.0, seconds=100.0, burst_s=10.0)
    {'stable_second': 1.0, 'burst_second': 6.0}
    """
    beyond = max(hosts + functions - stable * seconds, 0.0)
    return {"stable_second": stable, "burst_second": stable + beyond / burst_s}


def mean(moneys: list[Mapping[str, float]]) -> dict[str, float]:
    """The mean cost of a second, over several runs of a side.

    >>> mean([{"stable_second": 1.0, "burst_second": 2.0}, {"stable_second": 3.0, "burst_second": 4.0}])
    {'stable_second': 2.0, 'burst_second': 3.0}
    """
    names = ("stable_second", "burst_second")
    return {name: sum(one[name] for one in moneys) / len(moneys) for name in names}
