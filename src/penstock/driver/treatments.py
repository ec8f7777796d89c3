"""Treatments carried out: begun on the data plane, waited for, and given up if they never come to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.control.journal.entries import refused
from penstock.control.step_control import StepControl
from penstock.control.treat.decision import Treatment
from penstock.control.treat.patience import patience_ms
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError

_USUAL_START_MS = 500.0
"""From a decision until a new host works, before that was ever measured."""


class Treatments:
    """What is under way in the steps of a flow. Used by one thread at a time."""

    def __init__(
        self, relocation: Relocation, host_start_ms: float, clock_ms: Callable[[], float]
    ) -> None:
        self._relocation, self._clock_ms = relocation, clock_ms
        self._host_start_ms = host_start_ms
        """How long a host may take to come up."""
        self._start_ms = _USUAL_START_MS
        self._asked = dict[str, int]()
        """step -> slots that its newest treatment moves."""
        self._stuck: dict[str, tuple[int, float]] = {}
        """step -> slots that are not where they should be, and since when it is just so many."""

    def may_revise(self, control: StepControl) -> bool:
        """Whether a step waits for hosts that have been given nothing: more can be asked for then."""
        treating, pending = control.treating, self._relocation.pending_of(control.step)
        grows = treating is not None and treating.grows
        return grows and 0 < pending == self._asked.get(control.step)

    def worth_waiting_ms(self, control: StepControl, read_ms: float) -> float:
        """How long the next epoch may wait for a step's new hosts; the last one read at `read_ms`.

        While functions carry what is too much, there is nothing to wait for.
        """
        if control.offloading is not None and control.offloading.carries:
            return 0.0
        return patience_ms(control.treating, read_ms, self._clock_ms(), self._start_ms)

    def begin(self, control: StepControl, treatments: Sequence[Treatment], epoch: int) -> None:
        """Hand treatments to the data plane; if it refuses them, that is told."""
        try:
            names = self._relocation.treat(control.step, treatments)
        except PenstockError as error:
            wanted = "; ".join(str(treatment) for treatment in treatments)
            self._tell_refused(control, str(error), wanted, epoch)
            return
        self._asked[control.step] = self._relocation.pending_of(control.step)
        for host in names.values():
            control.examiner.forget_host(host)  # one of this name may have been there before
        named = [
            replace(t, source=names.get(t.source, t.source), target=names.get(t.target, t.target))
            for t in treatments
        ]
        control.began(named, self._clock_ms(), epoch)

    def notice_end(self, control: StepControl, epoch: int) -> None:
        """See whether a treatment is in force by now, or will never be.

        That is so if no slot has moved for as long as a host may take to come up. The same goes for
        slots of a host that died: nothing could be decided while they wait for it.
        """
        step, now_ms = control.step, self._clock_ms()
        pending = self._relocation.pending_of(step)
        if not pending:
            self._stuck.pop(step, None)
            if control.treating is not None and control.treating.grows:
                self._start_ms += (now_ms - control.treating.since_ms - self._start_ms) / 4
            control.completed(now_ms, self._relocation.hosts(step), epoch)
            return
        slots, since_ms = self._stuck.get(step, (0, now_ms))
        if slots != pending:
            self._stuck[step] = (pending, now_ms)
        elif now_ms - since_ms > self._host_start_ms:
            del self._stuck[step]
            self._relocation.stay(step)
            why = "a host did not come up in time"
            if control.treating is None:
                self._tell_refused(control, why, f"{pending} slots on another host", epoch)
            control.failed(why, now_ms, epoch)

    def _tell_refused(self, control: StepControl, why: str, wanted: str, epoch: int) -> None:
        now_ms = self._clock_ms()
        control.journal.add(refused(control.step, now_ms, why, wanted=wanted, epoch=epoch))
