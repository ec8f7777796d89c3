"""Simulated hotspots, as in AutoFlow's evaluation: on a step that keeps its hosts.

A host takes 1,000 records a second, and four fifths of what all of them can take arrive, but for the
spikes.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.plane import Plane
from penstock_bench.switch.simulated import Scenario, SimulatedLoad

BALANCERS = ("autoflow(2s, 0.2)", "switch(0.2)")


def hotspots() -> Iterator[Scenario]:
    """AutoFlow's Figure 5: a hotspot that stays."""
    for hosts, hot, share in ((3, 1, 0.5), (3, 1, 0.8), (5, 2, 0.6), (5, 2, 0.8)):
        load = SimulatedLoad(
            120.0, ((f"steady({800 * hosts})", f"hotspot({share}, {hosts}, {hot})"),)
        )
        for policy in (f"static({hosts})", *BALANCERS):
            yield _kept("hotspots", policy, load, hosts, (("share", share),))


def spikes() -> Iterator[Scenario]:
    """AutoFlow's Figure 6: for some seconds, much more for a third of the slots."""
    for length_s in (20, 10):
        rest_s = 90 - 30 - length_s
        spike = f"steps(0 for 30s, 900 for {length_s}s, 0 for {rest_s}s)"
        load = SimulatedLoad(90.0, (("steady(1500)", "uniform"), (spike, "hotspot(1, 3)")))
        for policy in ("static(3)", "autoflow(10s, 0.2)", *BALANCERS):
            yield _kept("spikes", policy, load, 3, (("length_s", length_s),))


def moving() -> Iterator[Scenario]:
    """AutoFlow's Figure 7: each host in turn has the hotspot, for 40 s."""
    for share in (0.5, 0.8):
        load = SimulatedLoad(240.0, (("steady(2400)", f"hotspot({share}, 3, 1, 40s)"),))
        for policy in ("static(3)", *BALANCERS):
            yield _kept("moving", policy, load, 3, (("share", share),))


def _kept(
    group: str, policy: str, load: SimulatedLoad, hosts: int, facts: tuple[tuple[str, float], ...]
) -> Scenario:
    return Scenario(
        *(group, policy, load, Plane(service_rate=1_000.0)),
        hosts=hosts,
        at_least=hosts,
        at_most=hosts,
        facts=(("hosts_kept", hosts), *facts),
        timeline_s=1,
        keep_loads=True,
    )
