"""Success rates of a running flow: the share of the SLA's windows that were kept, by bound."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.examine.success import FlowMeter, Success
from penstock.driver.progress import EpochProgress
from penstock.model import SLA


class SuccessRates:
    """The bounds of a flow's SLA on its latency from arrival to the sink, and how often they were kept.

    Fed by one thread; any thread may read.
    """

    def __init__(self, sla: SLA | None) -> None:
        self._meters: dict[bool, FlowMeter] = {}
        """Whether the bound is on the 99th percentile -> its meter."""
        self.set(sla)

    def set(self, sla: SLA | None) -> None:
        """Judge by this SLA from now on. Counts of a bound of the same kind go on."""
        meters = {}
        for bound in () if sla is None else sla.bounds:
            if bound.step is None:
                meters[bound.p99] = self._meters.get(bound.p99) or FlowMeter(bound)
                meters[bound.p99].bound = bound
        self._meters = meters

    def take(self, epoch: EpochProgress) -> None:
        """Take in an epoch that has reached the sink."""
        latency = epoch.latency
        if latency is not None:
            for meter in self._meters.values():
                latency_ms = latency.p99_ms if meter.bound.p99 else latency.mean_ms
                meter.take(epoch.done_ms, epoch.rows, latency_ms)

    @property
    def main(self) -> FlowMeter | None:
        """The meter of the first bound; None if there is none."""
        return next(iter(self._meters.values()), None)

    @property
    def rates(self) -> Mapping[str, Success]:
        """Kind of bound -> share of its windows that were kept: "average", "p99"."""
        return {"p99" if p99 else "average": meter.success for p99, meter in self._meters.items()}
