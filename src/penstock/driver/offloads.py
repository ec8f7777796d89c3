"""Functions within the control of a flow: whom they can help, whether they answer, what they are given.

The control loop asks `not_usable` before it decides, and hands in what couriers told. What is decided for
a step becomes a part of the next epoch's plan here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.control.controller import StepControl
from penstock.control.elastic import Elastic
from penstock.control.load import service_rates
from penstock.control.offload import Offloader
from penstock.control.offload_trust import Trust
from penstock.control.offload_values import OffloadSettings, recovery_ms
from penstock.courier.witness import Seen
from penstock.driver.functions import FunctionKeeper
from penstock.driver.offloaded import by_segment
from penstock.model import SLA
from penstock.operators.window.windows import Window
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.offload import segments
from penstock.plan.steps import FlowPlan, KeyedStep

NO_ANSWER = "functions have not answered for most of their rows: hosts take all of them for a while"
GONE = "there are no functions just now: hosts take all rows"
Controls = Mapping[str, StepControl]
_GENEROUS = 2.0
"""Functions may take so many times what they are expected to, until their rows are taken back."""


class Offloads:
    """What the control loop has of functions. Used by one thread at a time."""

    def __init__(self, flow: FlowPlan, keeper: FunctionKeeper) -> None:
        self.keeper = keeper
        self._trust = Trust()
        found = [segment for segment in segments(flow) if segment.keyed is not None]
        self._helped = {segment.id: segment for segment in found if segment.offloadable}
        self.whole: dict[str, str] = {s.id: s.reason for s in found if not s.offloadable}
        """Steps that functions cannot help, and why."""
        self._warm, self._asked = 0, False
        self._rows_each: dict[str, float] = {}
        """step -> rows that went to functions for a record that hosts were spared."""

    @property
    def helps(self) -> bool:
        """Whether there is any step that functions can help."""
        return bool(self._helped)

    def install(self, controls: Controls, elastic: Elastic, sla: SLA) -> None:
        """Give each step that functions can help who decides how much."""
        for step in self._helped:
            controls[step].offloader = Offloader(self._settings(step, elastic, sla))

    def steer(self, controls: Controls, elastic: Elastic, sla: SLA) -> None:
        """Let other settings hold from the next decision on."""
        for step in self._helped:
            offloader = controls[step].offloader
            assert offloader is not None
            offloader.steer(self._settings(step, elastic, sla))

    def withdraw(
        self, controls: Controls, why: str, now_ms: float, epoch: int | None = None
    ) -> None:
        """From the next epoch on hosts have all rows of all steps."""
        for control in controls.values():
            control.withdraw(why, now_ms, epoch)

    def _settings(self, step: str, elastic: Elastic, sla: SLA) -> OffloadSettings:
        """What holds for one of those steps."""
        deadline_ms = recovery_ms(_interval_ms(self._helped[step].keyed), sla)
        return elastic.offload_settings(deadline_ms)

    def not_usable(self, now_ms: float) -> str:
        """Why nothing can go to functions now; empty if it can."""
        if not self._trust.at(now_ms):
            return NO_ANSWER
        return GONE if self.keeper.reach is None else ""

    def take_in(
        self, controls: Controls, plan: EpochPlan, seen: Sequence[Seen], now_ms: float
    ) -> dict[str, float]:
        """An epoch is done: take in what couriers told. Returns how long each step waited, in ms.

        Functions that do not answer are left alone, and others are brought up in their place.
        """
        for task in seen:
            self.keeper.note(task.used)
        told = by_segment(seen)
        if told or self._asked:
            self.keeper.ask()  # and once more, when nothing goes to them any more
        self._asked = bool(told)
        rows, returned = sum(o.rows for o in told.values()), sum(o.returned for o in told.values())
        if self._trust.note(now_ms, rows, returned):
            self.keeper.renew()
        if why := self.not_usable(now_ms):
            self.withdraw(controls, why, now_ms, plan.epoch)
        for routes in plan.steps if not why else ():
            offloader, found = controls[routes.step].offloader, told.get(routes.step)
            if offloader is not None and found is not None and routes.offload is not None:
                spared = self._spared(routes.step, routes.offload, seen)
                self._rows_each[routes.step] = found.rows / max(spared, 1)
                answered = (found.rows - found.returned) / max(found.rows, 1)
                offloader.merged(round(answered * spared), found.records)
        return {step: float(found.wait_ms) for step, found in told.items()}

    def _spared(self, step: str, offload: Offload, seen: Sequence[Seen]) -> int:
        """Records that hosts would have got for what went to functions. Where couriers combine the
        rows of a key, these are fewer than the rows."""
        load = sum((task.loads[step] for task in seen if step in task.loads), start=np.zeros(1))
        shares = offload.shares if self._helped[step].by_slot else np.mean(offload.shares)
        return round(float((load * shares).sum()))

    def keep_warm(self, controls: Controls) -> None:
        """Steps work one after the other, so that they can use the same functions."""
        found = [control.offloading for control in controls.values()]
        wanted = max((one.warm for one in found if one is not None), default=0)
        if wanted != self._warm:
            self._warm = wanted
            self.keeper.warm(wanted)

    def planned(
        self, control: StepControl, elastic: Elastic, sla: SLA, now_ms: float, gap_ms: float
    ) -> Offload | None:
        """A step's part of the plan of an epoch with what arrived in the last `gap_ms`.

        Who expects much of functions must wait for them: longer than the bound, if need be.
        """
        found, vitals = control.offloading, control.vitals
        if found is None or vitals is None or not found.carries or self.not_usable(now_ms):
            return None
        deadline_ms = float(sla.latency_ms)
        served = service_rates(vitals)
        if served is not None:
            capacity = found.functions * elastic.offload_settings().speed * float(served.mean())
            rows = found.redirected * self._rows_each.get(control.step, 1.0)
            deadline_ms = max(deadline_ms, _GENEROUS * gap_ms * rows / capacity)
        return Offload(found.shares, found.functions, round(deadline_ms))


def _interval_ms(step: KeyedStep | None) -> float | None:
    """From one window's end to the next one's; None for a step without windows."""
    window = None if step is None else getattr(step.plan, "window", None)
    return window.every_us / 1000 if isinstance(window, Window) else None
