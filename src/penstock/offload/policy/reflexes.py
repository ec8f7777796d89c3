"""Limits of rows that hosts can process in time, by which couriers react to a burst on their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.offloading import OffloadSettings
from penstock.plan.reflex import Reflex

_DECAY = 1 / 4
"""Weight of the newest epoch in averages."""
_UNSEEN = 0.2
"""Fraction of the limits that is split evenly among partitions, whatever rows they had so far."""
_AGAIN = 64
"""Epochs until couriers report again whether they still combine."""
_AIM = 0.5
"""Fraction of a live flow's latency bound within which hosts should have processed a row."""
_NEVER = Reflex(limit=1e15, room=1e15, each=1.0, merge=0.0, workers=1)
"""A reflex that never offloads: couriers only report the rows that they route."""


class Reflexes:
    """Computes the reflex of one step. Pure; used by one thread at a time.

    An epoch takes the rows that arrived during the one before it. Let `c` be the cost of an epoch apart from
    hosts' work, and `l` the load of hosts. Then epochs take `c / (1 - l)`, of which hosts work the fraction
    `l`; if a trigger makes epochs longer, they work the fraction `l` of the trigger. Rows exceed the limit if
    they would keep hosts busy for longer than at the highest acceptable load. Then hosts keep only the rows
    that they process at the target load.

    >>> from penstock.model import StepId
    >>> vitals = Vitals.even(StepId("sum"), [700.0] * 2, 2, service_rate=1e3, epoch_cost_ms=200.0)
    >>> reflexes = Reflexes()
    >>> reflexes.note((420, 420), 840.0, combined=False)
    >>> reflex = reflexes.reflex(vitals, OffloadSettings(at_most=9), part=1.0, merge=0.1)
    >>> round(reflex.limit), round(reflex.room), round(reflex.each), reflex.parts
    (1600, 933, 467, (0.5, 0.5))
    """

    def __init__(self, trigger_ms: float = 0.0) -> None:
        self._trigger_ms = trigger_ms
        self._rows = np.zeros(0)
        self._records = 0.0
        self._combined = False
        self._epochs = 0
        """Epochs since couriers last reported whether they combine."""

    def note(self, by_partition: Sequence[int], records: float, combined: bool) -> None:
        """Add a finished epoch, with the rows of each partition at the point where rows leave for burst
        workers.

        Hosts got `records` for these rows, or would have got them. `combined` says whether couriers combined
        rows into fewer records.
        """
        rows = np.asarray(by_partition, np.float64)
        if not rows.any():
            return
        self._combined = combined
        if len(rows) != len(self._rows):
            self._rows, self._records = rows, records
            return
        self._rows = self._rows + _DECAY * (rows - self._rows)
        self._records += _DECAY * (records - self._records)

    def share_of(self, reflex: Reflex, records: float) -> float:
        """Fraction of an epoch's records that couriers have sent to burst workers by reflex."""
        total = float(self._rows.sum())
        return reflex.share(records * total / self._records) if self._records > 0 else 0.0

    def live_reflex(
        self, vitals: Vitals, settings: OffloadSettings, latency_ms: float, merge: float
    ) -> Reflex | None:
        """The reflex of a live flow, in rows per second; None while rates are unknown. Hosts should process a
        row within `_AIM` of the bound `latency_ms`.

        >>> from penstock.model import StepId
        >>> vitals = Vitals.even(StepId("sum"), [700.0] * 2, 2, service_rate=1e3)
        >>> reflexes = Reflexes()
        >>> reflexes.note((420, 420), 840.0, combined=False)
        >>> reflexes.live_reflex(vitals, OffloadSettings(at_most=9), latency_ms=100.0, merge=0.1)
        Reflex(limit=1600.0, room=1400.0, each=1000.0, merge=0.1, workers=9, parts=(0.5, 0.5), within_ms=50.0)
        """
        rates = self._rates(vitals, merge)
        if not isinstance(rates, tuple):
            return rates
        per_ms, worker_ms = rates[0], rates[1] * settings.speed
        return Reflex(
            limit=_about(1000 * settings.high * per_ms),
            room=_about(1000 * settings.target * per_ms),
            each=_about(max(1.0, 1000 * worker_ms)),
            merge=_about(merge),
            workers=max(1, settings.at_most),
            parts=self._parts(float(self._rows.sum())),
            within_ms=_AIM * latency_ms,
        )

    def reflex(
        self, vitals: Vitals, settings: OffloadSettings, part: float, merge: float
    ) -> Reflex | None:
        """The reflex for the next epoch; None while rates are unknown. `part` is the step's fraction of an
        epoch's time. `merge` is the cost, in records, that an offloaded record still has for its host."""
        rates = None if vitals.epoch_cost_ms <= 0 else self._rates(vitals, merge)
        if not isinstance(rates, tuple):
            return rates
        per_ms, worker_ms = rates[0], rates[1] * settings.speed
        room_ms = part * self._work_ms(settings.target, vitals.epoch_cost_ms)
        return Reflex(
            limit=per_ms * part * self._work_ms(settings.high, vitals.epoch_cost_ms),
            room=per_ms * room_ms,
            each=max(1.0, worker_ms * room_ms),
            merge=merge,
            workers=max(1, settings.at_most),
            parts=self._parts(float(self._rows.sum())),
        )

    def _rates(self, vitals: Vitals, merge: float) -> tuple[float, float] | Reflex | None:
        """Rows per millisecond of all hosts, and of one host; or the reflex to use while they are unknown."""
        served = service_rates(vitals)
        if served is None or not vitals.valid:
            return None
        total, each_host = float(self._rows.sum()), vitals.host_rate
        if self._combined:
            # A burst of rows need not be a burst of records: that is only known after they are combined.
            self._epochs = (self._epochs + 1) % _AGAIN
            return _NEVER if self._epochs == 0 else None
        if self._records <= 0 or float(each_host.sum()) <= 0 or merge >= 1:
            return _NEVER
        busy = each_host > 0
        # the step is at its limit when its first host is
        per_s = float((served[busy] * each_host.sum() / each_host[busy]).min())
        rows_each = total / self._records / 1000.0
        return per_s * rows_each, float(served.mean()) * rows_each

    def _work_ms(self, load: float, cost_ms: float) -> float:
        """Milliseconds that hosts work in an epoch at this load."""
        return load * max(self._trigger_ms, cost_ms / (1.0 - load))

    def _parts(self, total: float) -> tuple[float, ...]:
        count = len(self._rows)
        parts = (1 - _UNSEEN) * self._rows / total + _UNSEEN / count
        return tuple(float(part) for part in parts.round(3))


def _about(number: float) -> float:
    """A number rounded to two digits, so that couriers are updated only when it really changes."""
    return float(f"{number:.2g}")
