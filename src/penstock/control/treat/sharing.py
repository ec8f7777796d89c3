"""How the steps of a flow whose epochs they share keep to their parts of one bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.control.treat.budget import Budget
from penstock.model import StepId

SHARE_EPOCHS = 50
"""So many epochs are looked back on, and go by, before the shares of steps are moved."""


class Sharing:
    """Notes how each step does, epoch by epoch, and moves the shares now and then.

    The time of an epoch that no step's hosts worked is laid to all steps, by their shares.

    >>> sharing = Sharing([StepId("split"), StepId("count")])
    >>> for _ in range(SHARE_EPOCHS):
    ...     changed = sharing.note({"split": 100.0, "count": 700.0}, latency_ms=1000.0, bound_ms=1000.0)
    >>> {step: (old, round(new, 2)) for step, (old, new) in changed.items()}
    {'split': (0.5, 0.45), 'count': (0.5, 0.55)}
    """

    def __init__(self, steps: Sequence[StepId]) -> None:
        self._budget = Budget(steps)
        self._kept: dict[StepId, list[bool]] = {step: [] for step in steps}

    @property
    def shares(self) -> dict[StepId, float]:
        return self._budget.shares

    def note(
        self, spent_ms: Mapping[str, float], latency_ms: float, bound_ms: float
    ) -> dict[StepId, tuple[float, float]]:
        """An epoch is done: how long each step's hosts worked, and the latency of its rows.

        Returns the shares that have changed: before and now.
        """
        if len(self._kept) == 1:
            return {}
        rest = max(0.0, latency_ms - sum(spent_ms.values()))
        before = self.shares
        for step, share in before.items():
            self._kept[step].append(spent_ms[step] + share * rest <= share * bound_ms)
        if len(self._kept[next(iter(before))]) < SHARE_EPOCHS:
            return {}
        now = self._budget.update({step: sum(k) / len(k) for step, k in self._kept.items()})
        self._kept = {step: [] for step in before}
        return {step: (before[step], now[step]) for step in now if now[step] != before[step]}
