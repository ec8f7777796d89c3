"""Division of one end-to-end latency bound among several steps.

The larger its share, the more often a step keeps it. The flow keeps the whole bound most often when the
worst step does as well as it can, which is when all steps do equally well (StreamSwitch, section 6.6). So a
small part of the bound moves from steps that do well to steps that do badly, again and again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.errors import SettingError
from penstock.model import StepId

_NOISE = 0.002
"""Difference of success rates up to which they count as equal."""
_FIRST_GAIN, _MOST_GAIN = 1.0, 8.0
"""First and maximum factor from a difference in success to the relative change of a share."""
_MOST_CHANGE = 0.1
"""Maximum relative change of a share in one update."""


class Budget:
    """Shares of an end-to-end bound, one for each step. They add up to 1 and start out equal.

    No share falls below `floor`, or below half of an equal share where there are many steps. Changes grow
    while they go in one direction and shrink when they turn back. So shares settle, however strongly
    success depends on them.

    >>> budget = Budget([StepId("split"), StepId("count")])
    >>> budget.shares
    {'split': 0.5, 'count': 0.5}
    >>> shares = budget.update({"split": 0.99, "count": 0.91})
    >>> {step: round(share, 3) for step, share in shares.items()}
    {'split': 0.475, 'count': 0.525}
    """

    def __init__(self, steps: Sequence[StepId], floor: float = 0.05) -> None:
        if not steps or len(set(steps)) != len(steps):
            raise SettingError(
                f"a bound cannot be shared among the steps {list(steps)}",
                hint="name at least one step, and each only once",
            )
        if not 0 < floor < 1:
            raise SettingError(
                f"floor is {floor:g}", hint="use a share above 0 and below 1, such as 0.05"
            )
        self._floor = min(floor, 0.5 / len(steps))
        self._shares = {step: 1 / len(steps) for step in steps}
        self._gain = _FIRST_GAIN
        self._lack = [0.0] * len(steps)
        """Difference of each step's success rate to the mean at the last change; positive if below it."""

    @property
    def shares(self) -> dict[StepId, float]:
        return dict(self._shares)

    def update(self, success: Mapping[str, float]) -> dict[StepId, float]:
        """Adjust the shares by the success rates since the last update. Returns the new shares.

        A success rate is the share of windows in which a step kept its part of the bound. Nothing changes
        if one of the rates is unknown or all are equal.
        """
        rates = [success.get(step, math.nan) for step in self._shares]
        if any(math.isnan(rate) for rate in rates) or max(rates) - min(rates) <= _NOISE:
            return self.shares
        mean = sum(rates) / len(rates)
        lack = [mean - rate for rate in rates]
        turned = sum(now * before for now, before in zip(lack, self._lack, strict=True)) < 0
        self._gain = self._gain / 2 if turned else min(self._gain * 1.25, _MOST_GAIN)
        self._lack = lack
        wanted = [
            share * (1 + min(max(self._gain * below, -_MOST_CHANGE), _MOST_CHANGE))
            for share, below in zip(self._shares.values(), lack, strict=True)
        ]
        self._shares = dict(zip(self._shares, _whole(wanted, self._floor), strict=True))
        return self.shares


def _whole(wanted: Sequence[float], floor: float) -> list[float]:
    """Shares in these proportions that add up to 1, none below the floor.

    >>> _whole([0.96, 0.01], floor=0.05)
    [0.95, 0.05]
    """
    low = [False] * len(wanted)
    while True:
        rest = sum(share for share, is_low in zip(wanted, low, strict=True) if not is_low)
        part = (1 - floor * sum(low)) / rest
        lower = [is_low or share * part < floor for share, is_low in zip(wanted, low, strict=True)]
        if lower == low:
            return [
                floor if is_low else share * part for share, is_low in zip(wanted, low, strict=True)
            ]
        low = lower
