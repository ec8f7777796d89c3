"""A scaling policy of your own, tried in the simulator against the built-in ones.

Shows what a policy is given and what it answers. The simulator needs no Spark: ten minutes of load take
about a second. The same class works in a query: `flow.elastic(Halving())`.
Run it: python examples/own_policy.py
"""

import penstock as ps
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Plane
from penstock.sim.run import simulate
from penstock.sim.workload import workload


class Halving:
    """Gives half of the slots of the slowest host to a new one, and takes an idle host away."""

    def decide(self, vitals: ps.Vitals, bounds: ps.Bounds) -> ps.Decision:
        hosts, load = vitals.hosts, vitals.host_rate / vitals.service_rate
        slowest, idlest = int(vitals.latency_ms.argmax()), int(load.argmin())
        slots = vitals.slots_of(slowest)
        is_late = vitals.latency_ms[slowest] > bounds.alert_ms
        if is_late and len(hosts) < bounds.at_most and len(slots) > 1:
            reason = f"{hosts[slowest]} is late"
            half = tuple(slots[::2].tolist())
            out = ps.Treatment("scale_out", half, hosts[slowest], ps.new_host(1), reason)
            return ps.Decision("severe", (), (out,), (reason,))
        if len(hosts) > bounds.at_least and load.sum() < 0.5 * (len(hosts) - 1):
            heir = int(load.argsort()[1])
            reason = f"{hosts[idlest]} has little to do"
            given = tuple(vitals.slots_of(idlest).tolist())
            away = ps.Treatment("scale_in", given, hosts[idlest], hosts[heir], reason)
            return ps.Decision("good", (), (away,), (reason,))
        return ps.Decision("good", ())


def tried(policy, seconds: float = 600) -> Outcome:
    """A policy on bursts of five times the load, with an SLA of one second."""
    load = workload("burst(2000, 5, 60s, 30s, 120s)", slots=32, seconds=seconds)
    bounds = ps.Bounds(ps.SLA(latency_ms=1_000, window_ms=1_000), at_most=12)
    return simulate(load.trace, policy, bounds, Plane(service_rate=1_500.0), hosts=2)


def main(seconds: float = 600) -> None:
    for name, policy in {"own": Halving(), "switch": "switch", "static": "static(8)"}.items():
        outcome = tried(policy, seconds)
        kept, hosts = f"{outcome.success:.1%}", f"{outcome.hosts:.1f}"
        print(f"{name:8} kept the SLA in {kept} of windows, with {hosts} hosts on average")


if __name__ == "__main__":
    main()
