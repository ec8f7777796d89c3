"""AutoFlow: a hotspot is diminished by moving slots from the busiest host to the idlest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds, Decision, Treatment
from penstock.errors import SettingError


class AutoFlow:
    """Counts what arrives in windows of its own; at the end of each it may move slots. Never scales.

    Where the busiest host got `factor` more than the idlest, as a part of what it got, half of
    the gap is packed with its slots, the largest that still fit first. The window should be shorter
    than a hotspot lasts, and long enough that counts mean something.

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
                f"the window is {window_ms:g} ms and the factor is {factor:g}",
                hint="use a window above 0 and a factor above 0, of at most 1: autoflow(5s, 0.2)",
            )
        self.window_ms, self.factor = float(window_ms), factor
        self._counts: Floats = np.zeros(0)
        """Per slot: records of the window so far."""
        self._since_ms = self._last_ms = 0.0

    def __str__(self) -> str:
        seconds = f"{self.window_ms / 1000:g}s"
        return f"autoflow({seconds}, {self.factor:g})"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        found = observed(vitals, bounds)
        if len(self._counts) != len(vitals.rate):
            self._begin(vitals)
        self._counts += vitals.rate * ((vitals.now_ms - self._last_ms) / 1000.0)
        self._last_ms = vitals.now_ms
        if vitals.now_ms - self._since_ms < self.window_ms:
            return found
        counts, took_ms = self._counts, vitals.now_ms - self._since_ms
        self._begin(vitals)
        treatments, reasons = self._look(vitals, counts, took_ms)
        return replace(found, treatments=treatments, reasons=reasons)

    def _begin(self, vitals: Vitals) -> None:
        self._counts = np.zeros(len(vitals.rate))
        self._since_ms = self._last_ms = vitals.now_ms

    def _look(
        self, vitals: Vitals, counts: Floats, took_ms: float
    ) -> tuple[tuple[Treatment, ...], tuple[str, ...]]:
        """What the end of a window brings."""
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
            why = f"no slot fits into half of the gap: the smallest brought {smallest:,.0f}"
            return (), (f"{reason}, but {why}",)
        return (Treatment("balance", fitting, source, target, reason),), (reason,)


def _first_fit(slots: Ints, counts: Floats, room: float) -> tuple[int, ...]:
    """Slots that fit into the room together, the largest first; those that brought nothing stay."""
    found = []
    for slot in slots[np.argsort(-counts[slots], kind="stable")].tolist():
        if 0 < counts[slot] <= room:
            found.append(slot)
            room -= counts[slot]
    return tuple(sorted(found))
