"""What a day with bursts costs, from what a stable second and a second of a burst cost."""

from __future__ import annotations

from collections.abc import Mapping

DAY_S = 24 * 3600
BURST_SHARE = 0.01
"""Of the day, the time in which there is a burst: Sponge's example."""


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
    """Of several runs of a side, each second's mean.

    >>> mean([{"stable_second": 1.0, "burst_second": 2.0}, {"stable_second": 3.0, "burst_second": 4.0}])
    {'stable_second': 2.0, 'burst_second': 3.0}
    """
    names = ("stable_second", "burst_second")
    return {name: sum(one[name] for one in moneys) / len(moneys) for name in names}
