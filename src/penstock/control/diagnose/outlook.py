"""Outlook of a step: its hosts, load and latency, now or as expected after treatments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.control.diagnose.load import service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Bounds


@dataclass(frozen=True)
class Outlook:
    """Number of hosts of a step, with the load and latency of the worst host.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [60.0, 20.0], hosts=2, service_rate=100.0)
    >>> now = Outlook.of(vitals, Bounds(SLA(1000, 1000)))
    >>> now
    Outlook(hosts=2, load=0.6, latency_ms=50.0)
    >>> print(Outlook(3, 0.4, 25.0).instead_of(now))
    3 hosts instead of 2, the busiest at 40 % of its service rate instead of 60 %, latency to settle \
at 25 ms instead of 50 ms
    """

    hosts: int
    load: float
    """Load of the busiest host: its arrivals over its service rate; nan if no service rate is known."""
    latency_ms: float
    """Worst projected latency; inf if a host cannot keep up, nan if no service rate is known."""

    @staticmethod
    def of(vitals: Vitals, bounds: Bounds) -> Outlook:
        """The outlook of a step with these vitals, by the projection that fits its engine."""
        served = service_rates(vitals)
        if served is None:
            return Outlook(len(vitals.hosts), math.nan, math.nan)
        rate = vitals.host_rate
        latencies = fitting(vitals).latency_ms(rate, served, bounds, vitals.cost_ms)
        return Outlook(len(vitals.hosts), float((rate / served).max()), float(latencies.max()))

    def instead_of(self, other: Outlook) -> str:
        """Text that compares this outlook with an earlier one."""
        before = "as before" if self.hosts == other.hosts else f"instead of {other.hosts:,}"
        parts = [f"{hosts_text(self.hosts)} {before}"]
        if not math.isnan(self.load) and not math.isnan(other.load):
            parts += [
                f"the busiest at {100 * self.load:.0f} % of its service rate "
                f"instead of {100 * other.load:.0f} %",
                f"latency to settle at {milliseconds_text(self.latency_ms)} "
                f"instead of {milliseconds_text(other.latency_ms)}",
            ]
        return ", ".join(parts)

    def facts(self) -> dict[str, float | None]:
        """JSON values for the journal."""
        load, latency_ms = finite(self.load, 4), finite(self.latency_ms)
        return {"hosts": self.hosts, "load": load, "latency_ms": latency_ms}


def finite(figure: float, digits: int = 1) -> float | None:
    """A figure for JSON: rounded, or None if it is unknown or infinite.

    >>> finite(12.345), finite(math.inf), finite(math.nan)
    (12.3, None, None)
    """
    return round(float(figure), digits) if math.isfinite(figure) else None


def milliseconds_text(figure: float) -> str:
    """A latency as text.

    >>> milliseconds_text(1640.2), milliseconds_text(math.inf), milliseconds_text(math.nan)
    ('1,640 ms', '∞', 'unknown')
    """
    if math.isnan(figure):
        return "unknown"
    return f"{figure:,.0f} ms" if math.isfinite(figure) else "∞"


def hosts_text(hosts: int) -> str:
    """A number of hosts as text, such as "1 host" or "2 hosts"."""
    return f"{hosts:,} host" if hosts == 1 else f"{hosts:,} hosts"
