"""AutoFlow: relieves a hotspot by moving slots from the busiest host to the idlest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds, Decision, Treatment
from penstock.errors import SettingError


class AutoFlow:
    """Counts arrivals in windows of its own, and may move slots at the end of each. Never scales.

    It moves slots if the gap between the busiest host and the idlest is at least `factor` times the busiest
    host's arrivals. It fills half of the gap with slots of the busiest host, the largest that fit first. The
    window should be shorter than a hotspot, and long enough for counts that are not just noise.

    >>> from dataclasses import replace
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [6.0, 3.0, 2.0, 1.0], hosts=2, service_rate=20.0)
    >>> policy, bounds = AutoFlow(window_ms=1_000), Bounds(SLA(1000, 1000))
    >>> policy.decide(vitals, bounds).treatments
    ()
    >>> print(policy.decide(replace(vitals, now_ms=1_000.0), bounds).treatments[0])
    balance: slots 1 from sum/0 to sum/1
    """

    def __init__(self, window_ms: float = 5_000.0, factor: float = 0.2) -> None:
        if not window_ms > 0 or not 0 < factor <= 1:
            raise SettingError(
                f"autoflow has a window of {window_ms:g} ms and a factor of {factor:g}",
                hint="use a window above 0 and a factor above 0 and up to 1, such as autoflow(5s, 0.2)",
            )
        self.window_ms, self.factor = float(window_ms), factor
        self._counts: Floats = np.zeros(0)
        """Records of the present window, by slot."""
        self._since_ms = self._last_ms = 0.0

    def __str__(self) -> str:
        seconds = f"{self.window_ms / 1000:g}s"
        return f"autoflow({seconds}, {self.factor:g})"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        decision = observed(vitals, bounds)
        if len(self._counts) != len(vitals.rate):
            self._begin(vitals)
        self._counts += vitals.rate * ((vitals.now_ms - self._last_ms) / 1000.0)
        self._last_ms = vitals.now_ms
        if vitals.now_ms - self._since_ms < self.window_ms:
            return decision
        counts, took_ms = self._counts, vitals.now_ms - self._since_ms
        self._begin(vitals)
        treatments, reasons = self._look(vitals, counts, took_ms)
        return replace(decision, treatments=treatments, reasons=reasons)

    def _begin(self, vitals: Vitals) -> None:
        self._counts = np.zeros(len(vitals.rate))
        self._since_ms = self._last_ms = vitals.now_ms

    def _look(
        self, vitals: Vitals, counts: Floats, took_ms: float
    ) -> tuple[tuple[Treatment, ...], tuple[str, ...]]:
        """Treatments and reasons at the end of a window."""
        totals = np.bincount(vitals.owner, counts, len(vitals.hosts))
        busiest, idlest = int(totals.argmax()), int(totals.argmin())
        gap = totals[busiest] - totals[idlest]
        if not totals[busiest] > 0 or gap < self.factor * totals[busiest]:
            return (), ()
        source, target = vitals.hosts[busiest], vitals.hosts[idlest]
        slots = vitals.slots_of(busiest)
        fitting = _first_fit(slots, counts, gap / 2)
        reason = (
            f"in {took_ms / 1000:,.1f} s {source} got {totals[busiest]:,.0f} records, {target} "
            f"{totals[idlest]:,.0f}: a gap of {100 * gap / totals[busiest]:.0f} %"
        )
        if not fitting:
            smallest = counts[slots][counts[slots] > 0].min()
            why = f"no slot fits into half of the gap: the smallest had {smallest:,.0f}"
            return (), (f"{reason}, but {why}",)
        return (Treatment("balance", fitting, source, target, reason),), (reason,)


def _first_fit(slots: Ints, counts: Floats, room: float) -> tuple[int, ...]:
    """Slots that fit into the room together, the largest first, without slots that had no records."""
    fitting = []
    for slot in slots[np.argsort(-counts[slots], kind="stable")].tolist():
        if 0 < counts[slot] <= room:
            fitting.append(slot)
            room -= counts[slot]
    return tuple(sorted(fitting))
