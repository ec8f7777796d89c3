"""One end-to-end bound for several steps: which share of it each step may use.

The larger its share, the more often a step keeps to it. The flow keeps to the whole bound most often
where the step that does worst does as well as it can, and that is where all do equally well
(StreamSwitch, section 6.6). So now and then a little of the bound goes from the steps that do well to
those that do badly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.errors import SettingError
from penstock.model import StepId

_NOISE = 0.002
"""Success rates that differ by no more than this are equal."""
_FIRST_GAIN, _MOST_GAIN = 1.0, 8.0
"""What a difference in success is multiplied by, to give the part of a share that changes hands."""
_MOST_CHANGE = 0.1
"""A share changes by no more than this part of itself at a time."""


class Budget:
    """Shares of an end-to-end bound, one for each step; they add up to 1. At first all are equal.

    No share falls below `floor`, or half of an equal share where there are many steps. Changes become
    larger while they go in one direction and smaller when they turn back, so that shares settle
    however steeply success follows from them.

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
                f"the latency bound cannot be shared among the steps {list(steps)}",
                hint="name at least one step, and each step once",
            )
        if not 0 < floor < 1:
            raise SettingError(
                f"floor is {floor:g}", hint="use a part of the bound between 0 and 1, such as 0.05"
            )
        self._floor = min(floor, 0.5 / len(steps))
        self._shares = {step: 1 / len(steps) for step in steps}
        self._gain = _FIRST_GAIN
        self._lack = [0.0] * len(steps)
        """How far each step was below the mean success, at the last change."""

    @property
    def shares(self) -> dict[StepId, float]:
        return dict(self._shares)

    def update(self, success: Mapping[str, float]) -> dict[StepId, float]:
        """Move shares a little, by the success rate of every step since the last time; the new ones.

        A success rate is the part of windows in which a step kept to its share. Nothing moves as
        long as one of them is not known, or where all are equal.
        """
        rates = [success.get(step, math.nan) for step in self._shares]
        if any(math.isnan(rate) for rate in rates) or max(rates) - min(rates) <= _NOISE:
            return self.shares
        mean = sum(rates) / len(rates)
        lack = [mean - rate for rate in rates]
        turned = sum(one * other for one, other in zip(lack, self._lack, strict=True)) < 0
        self._gain = self._gain / 2 if turned else min(self._gain * 1.25, _MOST_GAIN)
        self._lack = lack
        wanted = [
            share * (1 + min(max(self._gain * one, -_MOST_CHANGE), _MOST_CHANGE))
            for share, one in zip(self._shares.values(), lack, strict=True)
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
