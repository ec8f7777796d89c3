"""Functions within the control of a flow: whom they can help, whether they answer, what they are given.

The control loop asks `not_usable` before it decides, and hands in what couriers told. What is decided for
a step becomes a part of the next epoch's plan here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.elastic import Elastic
from penstock.control.examine.vitals import Floats
from penstock.control.step_control import StepControl
from penstock.model import SLA
from penstock.offload.driver.keeper import FunctionKeeper
from penstock.offload.driver.totals import by_segment
from penstock.offload.plan.segments import segments
from penstock.offload.policy.apportion import apportioned
from penstock.offload.policy.offloader import Offloader
from penstock.offload.policy.reflexes import Came, Reflexes
from penstock.offload.policy.stateless import courier_settings
from penstock.offload.policy.trust import Trust
from penstock.offload.policy.values import OffloadSettings, recovery_ms
from penstock.operators.window.windows import Window
from penstock.plan.epoch import EpochPlan, Offload, StepRoutes
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.wire.report import Seen

NO_ANSWER = "functions have not answered for most of their rows: hosts take all of them for a while"
GONE = "there are no functions just now: hosts take all rows"
Controls = Mapping[str, StepControl]
_GENEROUS = 2.0
"""Functions may take so many times what they are expected to, until their rows are taken back."""


class Offloads:
    """What the control loop has of functions. Used by one thread at a time."""

    def __init__(
        self,
        flow: FlowPlan,
        keeper: FunctionKeeper,
        trigger_ms: float = 0.0,
        together: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.keeper, self.together = keeper, together
        """How many couriers are at work at a time, if that is known."""
        self._trust = Trust()
        found = segments(flow)
        self._helped = {segment.id: segment for segment in found if segment.offloadable}
        self.maps = tuple(name for name, one in self._helped.items() if one.keyed is None)
        """Segments without a keyed step, which couriers run."""
        self.whole: dict[str, str] = {
            one.id: one.reason for one in found if one.keyed is not None and not one.offloadable
        }
        """Steps that functions cannot help, and why."""
        self._warm, self._asked = 0, False
        self._seen: Sequence[Seen] = ()
        """What couriers told of the last epoch, by partition."""
        self._rows_each: dict[str, float] = {}
        """step -> rows that went to functions for a record that hosts were spared."""
        self._reflexes = {step: Reflexes(trigger_ms) for step in self._helped}

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
        keyed = self._helped[step].keyed
        settings = elastic.offload_settings(recovery_ms(_interval_ms(keyed), sla))
        return settings if keyed is not None else courier_settings(settings)

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
        self._seen = seen
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
        for step, reflexes in self._reflexes.items():
            came = _came(step, seen)
            if len(came.rows) == plan.partitions:
                reflexes.note(came)
        for routes in plan.steps if not why else ():
            offloader, found = controls[routes.step].offloader, told.get(routes.step)
            if offloader is not None and found is not None and routes.offload is not None:
                spared = self._spared(routes, seen)
                self._rows_each[routes.step] = found.rows / max(spared, 1)
                answered = (found.rows - found.returned) / max(found.rows, 1)
                offloader.merged(round(answered * spared), found.records)
        return {step: float(found.wait_ms) for step, found in told.items()}

    def _spared(self, routes: StepRoutes, seen: Sequence[Seen]) -> int:
        """Records that hosts would have got for what went to functions. Where couriers combine the
        rows of a key, these are fewer than the rows."""
        step, offload = routes.step, routes.offload
        assert offload is not None
        asking = [task for n, task in enumerate(seen) if offload.at_once(n, len(seen))]
        load = sum((task.loads[step] for task in asking if step in task.loads), start=np.zeros(1))
        shares = self.shares_in_force(routes, float(load.sum()))
        return round(float((load * shares).sum()))

    def shares_in_force(self, routes: StepRoutes, records: float) -> Floats:
        """By slot, or one for all: what functions have of an epoch that brings so many records."""
        if routes.offload is None:
            return np.zeros(1)
        shares, reflex = routes.offload.shares, routes.offload.reflex
        if not self._helped[routes.step].by_slot:
            shares = np.array([np.mean(shares)])
        if reflex is not None:
            shares = np.maximum(shares, self._reflexes[routes.step].share_of(reflex, records))
        return shares

    def keep_warm(self, controls: Controls) -> None:
        """Steps work one after the other, so that they can use the same functions."""
        found = [control.offloading for control in controls.values()]
        wanted = max((one.warm for one in found if one is not None), default=0)
        if wanted != self._warm:
            self._warm = wanted
            self.keeper.warm(wanted)

    def planned(
        self,
        control: StepControl,
        elastic: Elastic,
        sla: SLA,
        now_ms: float,
        gap_ms: float,
        partitions: int,
    ) -> Offload | None:
        """A step's part of the plan of an epoch with what arrived in the last `gap_ms`.

        Who expects much of functions must wait for them: longer than the bound, if need be. Where
        nothing is to go to them couriers may still find that they have too much.
        """
        found, vitals, offloader = control.offloading, control.vitals, control.offloader
        if found is None or vitals is None or offloader is None or self.not_usable(now_ms):
            return None
        part = control.bounds.time
        reflex = self._reflexes[control.step].reflex(vitals, offloader.limits, part, found.merge)
        if reflex is None and not found.carries:
            return None
        deadline_ms = float(sla.latency_ms)
        served = service_rates(vitals)
        if served is not None and found.carries:
            capacity = found.functions * elastic.offload_settings().speed * float(served.mean())
            rows = found.redirected * self._rows_each.get(control.step, 1.0)
            deadline_ms = max(deadline_ms, _GENEROUS * gap_ms * rows / capacity)
        shares = found.shares
        if control.step in self.maps:
            shares = _by_partition(shares, partitions)
        plain = Offload(shares, max(1, found.functions), round(deadline_ms), reflex=reflex)
        at_most = elastic.offload_settings().at_most
        return self._shared_out(control.step, plain, partitions, at_most)

    def _shared_out(self, step: str, offload: Offload, partitions: int, at_most: int) -> Offload:
        """With the functions that each courier may use, if these are not the same for all.

        Where some get none, others give more of their rows, so that hosts get as few of them.
        """
        seen = self._seen if len(self._seen) == partitions else ()
        rows = np.array([self._aside(step, offload, n, task) for n, task in enumerate(seen)])
        if not rows.any():
            rows = np.ones(partitions)
        each = apportioned(offload.functions, rows, self.together(), at_most)
        if each == tuple(offload.at_once(n, partitions) for n in range(partitions)):
            return offload
        helped = rows[np.array(each) > 0].sum()
        if step not in self.maps and helped > 0:
            shares = np.minimum(1.0, offload.shares * (rows.sum() / helped))
            offload = replace(offload, shares=shares)
        return replace(offload, per_courier=each)

    def _aside(self, step: str, offload: Offload, partition: int, task: Seen) -> float:
        """What one courier would have had for functions in the last epoch."""
        if step in task.maps:
            return task.maps[step].rows * offload.share_of(partition, len(self._seen))
        shares = offload.shares if self._helped[step].by_slot else np.mean(offload.shares)
        return float((task.loads.get(step, np.zeros(1)) * shares).sum())


def _came(step: str, seen: Sequence[Seen]) -> Came:
    """What came by where rows of a step, or of a segment without one, leave for functions."""
    done = [task.maps[step].rows for task in seen if step in task.maps]
    if done:
        return Came(done, float(sum(done)), combined=False)
    routed = [task.routed[step] for task in seen if step in task.routed]
    records = float(sum(task.loads[step].sum() for task in seen if step in task.loads))
    return Came([one.rows for one in routed], records, any(one.combined for one in routed))


def _by_partition(shares: Floats, partitions: int) -> Floats:
    """Shares of partitions for so many of them; one for all, where these are others."""
    return shares if len(shares) == partitions else shares.mean(keepdims=True)


def _interval_ms(step: KeyedStep | None) -> float | None:
    """From one window's end to the next one's; None for a step without windows."""
    window = None if step is None else getattr(step.plan, "window", None)
    return window.every_us / 1000 if isinstance(window, Window) else None
