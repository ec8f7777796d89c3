"""DRS: the number of hosts that an M/M/k queue needs to stay within the bound.

An M/M/k queue is one queue with k equal hosts. DRS computes only the number of hosts; slots are chosen in
the same way as by switch. It assumes that arrivals are spread evenly over hosts. DRS-LB also balances them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.diagnose.load import service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.diagnose.strategies import balance, scale_in, scale_out
from penstock.control.examine.vitals import Vitals
from penstock.control.policies.moves import moves
from penstock.control.treat.decision import Bounds, Decision, Treatment, after, new_host
from penstock.errors import SettingError
from penstock.model import HostId


class Drs:
    """Scales to the smallest number of hosts whose expected sojourn time is within the step's bound.

    All hosts are assumed to have the mean service rate, less the margin. With `unit`, a decision adds or
    removes one host, otherwise as many as needed. Fewer hosts must have been enough for `patience` decisions
    in a row, so that noise does not remove a host and add it again.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [300.0] * 4, hosts=1, service_rate=1_000.0)
    >>> decision = Drs().decide(vitals, Bounds(SLA(1000, 1000)))
    >>> print(decision.treatments[0])
    scale out: slots 0-1 from sum/0 to new/1
    >>> print(decision.reasons[0])
    arrivals of 1,200/s at service rates of 1,000/s, less a margin of 20 %, need 2 hosts for 1,000 ms; \
there is 1
    """

    def __init__(self, unit: bool = True, patience: int = 5) -> None:
        if patience < 1:
            raise SettingError(f"patience is {patience} decisions", hint="use 1 or more")
        self.unit, self.patience = unit, patience
        self._enough = 0
        """Number of decisions in a row for which fewer hosts would have been enough."""

    def __str__(self) -> str:
        return "drs"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        decision, served = observed(vitals, bounds), service_rates(vitals)
        if served is None:
            return decision
        rate, service_rate = float(vitals.rate.sum()), float(served.mean())
        most = min(bounds.at_most, len(vitals.owner))
        needed = hosts_needed(rate, (1 - bounds.margin) * service_rate, bounds.latency_ms, most)
        wanted = max(most if needed is None else needed, min(bounds.at_least, most))
        present = len(vitals.hosts)
        self._enough = self._enough + 1 if wanted < present else 0
        if wanted > present or self._enough >= self.patience:
            self._enough = 0
            decision = replace(decision, treatments=self._towards(wanted, vitals, bounds))
        else:
            decision = self._unscaled(decision, vitals, bounds)
        if decision.treatments or needed is None or wanted > present:
            need = f"more than {_count(most)}" if needed is None else _count(needed)
            reason = (
                f"arrivals of {rate:,.0f}/s at service rates of {service_rate:,.0f}/s, less a margin "
                f"of {100 * bounds.margin:.0f} %, need {need} for {bounds.latency_ms:,.0f} ms; "
                f"there {'is' if present == 1 else 'are'} {present}"
                + ("" if decision.treatments or wanted == present else ", and none can be divided")
            )
            decision = replace(decision, reasons=(reason, *decision.reasons))
        return decision

    def _unscaled(self, decision: Decision, vitals: Vitals, bounds: Bounds) -> Decision:
        """The decision if the number of hosts stays as it is."""
        return decision

    def _towards(self, wanted: int, vitals: Vitals, bounds: Bounds) -> tuple[Treatment, ...]:
        """Treatments that add or remove one host (`unit`), or all hosts up to `wanted`."""
        then, last = vitals, None
        for number in range(1, 1 + abs(wanted - len(vitals.hosts))):
            if wanted > len(then.hosts):
                treatment = _one_more(then, bounds, new_host(number))
            else:
                treatment = scale_in(then, bounds, fitting(then))
            if treatment is None:
                break
            if self.unit:
                return (treatment,)
            then, last = after(then, [treatment]), treatment
        return () if last is None else moves(vitals, then.hosts, then.owner, last.reason)


class DrsLb(Drs):
    """DRS that also balances, in the same way as switch, if it does not scale and a host is severe.

    >>> from penstock.model import SLA, StepId
    >>> rates = [700.0, 150.0, 10.0, 10.0]
    >>> vitals = Vitals.even(StepId("sum"), rates, hosts=2, service_rate=1_000.0, latency_ms=900.0)
    >>> print(DrsLb().decide(vitals, Bounds(SLA(1000, 1000))).treatments[0])
    balance: slots 1 from sum/0 to sum/1
    """

    def __str__(self) -> str:
        return "drs_lb"

    def _unscaled(self, decision: Decision, vitals: Vitals, bounds: Bounds) -> Decision:
        if decision.health != "severe":
            return decision
        treatment = balance(vitals, bounds, fitting(vitals))
        if treatment is None:
            return decision
        return replace(decision, treatments=(treatment,), reasons=(treatment.reason,))


def sojourns_ms(rate: float, service_rate: float) -> Iterator[float]:
    """Mean sojourn times in milliseconds, waiting and service, with 1, 2, 3 ... hosts.

    The time is inf where the hosts cannot keep up. Erlang's formulas are computed by their recursions, which
    are numerically stable for any number of hosts.

    >>> [round(ms, 2) for ms in islice(sojourns_ms(1_799.0, 1_800.0), 2)]
    [1000.0, 0.74]
    """
    all_busy, load = 1.0, rate / service_rate
    for hosts in count(1):
        # Erlang B: the probability that all hosts are busy if nobody waits, from that for one host less
        all_busy = load * all_busy / (hosts + load * all_busy)
        spare = hosts * service_rate - rate
        if spare <= 0:
            yield math.inf
        else:
            # Erlang C: the probability that a record has to wait
            waits = hosts * all_busy / (hosts - load * (1.0 - all_busy))
            yield 1000.0 * (waits / spare + 1.0 / service_rate)


def hosts_needed(rate: float, service_rate: float, latency_ms: float, most: int) -> int | None:
    """The smallest number of hosts with a sojourn time of at most `latency_ms`; None if above `most`.

    >>> hosts_needed(5_000.0, 1_000.0, 1_000.0, most=32), hosts_needed(5_000.0, 1_000.0, 1.1, most=32)
    (6, 8)
    """
    if rate >= most * service_rate or 1000.0 / service_rate > latency_ms:
        return None
    sojourns = enumerate(islice(sojourns_ms(rate, service_rate), most), start=1)
    return next((hosts for hosts, ms in sojourns if ms <= latency_ms), None)


def _one_more(vitals: Vitals, bounds: Bounds, name: HostId) -> Treatment | None:
    """The scale-out of the busiest host whose slots can be divided; None if there is none."""
    projection, served = fitting(vitals), service_rates(vitals)
    assert served is not None, "decide returns early without service rates"
    for source in np.argsort(-vitals.host_rate / served, kind="stable").tolist():
        treatment = scale_out(vitals, bounds, projection, source)
        if treatment is not None:
            return replace(treatment, target=name)
    return None


def _count(hosts: int) -> str:
    return f"{hosts} host" if hosts == 1 else f"{hosts} hosts"
