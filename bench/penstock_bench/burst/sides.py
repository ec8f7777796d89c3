"""Sides that `penstock bench burst` compares: ways to answer a burst, and the cost of a day with bursts.

Names in parentheses are those of the same sides in Sponge's figures 10 to 13.
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
"""Names of the sides in tables and pictures."""

MEANINGS: dict[Side, str] = {
    "no_scaling": "hosts and slots stay as they are (NoScaling)",
    "new_hosts_30s": "the switch adds hosts, each on a machine that takes 30 s to start (VMBase)",
    "new_hosts": "the switch adds hosts, which start as fast as this machine allows",
    "hosts_beforehand": "hosts for the burst are up and own no slots; slots and state move to them "
    "in the burst (VMInit)",
    "functions_migrating": "functions take over slots as hosts do: task and state stop, move over a "
    "function's 100 Mbit/s and continue; a step whose neighbour across an exchange is on functions "
    "stays on hosts (SFBase)",
    "penstock": "rows are redirected to functions kept warm, partial states merged (Sponge)",
    "overprovisioned": "hosts for the whole burst from the start (Over)",
    "routers": "as functions_migrating, but neighbouring steps may be on functions (SpongeRO)",
    "routers_transients": "as routers, without a pause to move tasks; state still moves (SpongeTO)",
    "no_warm": "Penstock with every function started cold (SpongeSnap)",
}
"""Description of each side, for the report."""


DAY_S = 24 * 3600
BURST_SHARE = 0.01
"""Share of a day that is a burst, as in Sponge's example."""


def day(money: Mapping[str, float], share: float = BURST_SHARE) -> float:
    """Cost in dollars of a day of which `share` is a burst.

    >>> day({"stable_second": 0.001, "burst_second": 0.011}, 0.1)
    172.8
    """
    mean = (1 - share) * money["stable_second"] + share * money["burst_second"]
    return round(DAY_S * mean, 9)


def per_second(
    hosts: float, functions: float, stable: float, seconds: float, burst_s: float
) -> dict[str, float]:
    """Cost of a stable second and of a second of the burst, in dollars.

    `hosts` and `functions` are the run's total cost, `stable` is the cost of a stable second. All cost
    beyond `seconds` stable seconds is the burst's, even if it is paid after the burst, such as for
    hosts that are released later.

    >>> per_second(hosts=120.0, functions=30.0, stable=1.0, seconds=100.0, burst_s=10.0)
    {'stable_second': 1.0, 'burst_second': 6.0}
    """
    beyond = max(hosts + functions - stable * seconds, 0.0)
    return {"stable_second": stable, "burst_second": stable + beyond / burst_s}


def mean(moneys: list[Mapping[str, float]]) -> dict[str, float]:
    """Mean cost of a second over several runs of a side.

    >>> mean([{"stable_second": 1.0, "burst_second": 2.0}, {"stable_second": 3.0, "burst_second": 4.0}])
    {'stable_second': 2.0, 'burst_second': 3.0}
    """
    names = ("stable_second", "burst_second")
    return {name: sum(money[name] for money in moneys) / len(moneys) for name in names}
