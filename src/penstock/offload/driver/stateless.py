"""Segments without a keyed step under control: what their couriers told becomes vitals of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.control.examine.vitals import Ints, Work
from penstock.control.journal.journal import Journal
from penstock.control.treat.decision import Bounds
from penstock.driver.arrivals import arrivals_of
from penstock.model import StepId
from penstock.offload.policy.stateless import CourierControl
from penstock.plan.epoch import EpochPlan
from penstock.wire.report import MapWork, Seen


class MapControls:
    """Control of all segments of a flow that have no keyed step and that functions can help.

    Used by one thread at a time. They take no part in how keyed steps share the bound: couriers are
    held to an equal part of an epoch's time.
    """

    def __init__(
        self,
        names: Sequence[str],
        keyed: int,
        bounds: Bounds,
        journal: Journal,
        delta_ms: float,
        dry_run: bool,
    ) -> None:
        self._delta_ms, self._part = delta_ms, 1.0 / (1 + keyed)
        self.controls = {
            name: CourierControl(
                StepId(name), bounds, journal=journal, delta_ms=delta_ms, dry_run=dry_run
            )
            for name in names
        }
        self.set_bounds(bounds)

    def set_bounds(self, bounds: Bounds) -> None:
        """What holds for a step that has the bound to itself."""
        for control in self.controls.values():
            count = len(control.couriers)
            control.bounds = replace(
                bounds,
                share=self._part,
                alert=bounds.alert_ms / self._part,
                at_least=count,
                at_most=count,
            )

    def take_in(
        self,
        plan: EpochPlan,
        seen: Sequence[Seen],
        since_ms: float,
        started_ms: float,
        written_ms: float,
        together: int | None = None,
    ) -> dict[str, float]:
        """An epoch, that began at `started_ms` and the one before at `since_ms`, is in the sink.

        `seen` is by partition; `together` is how many couriers are at work at a time, if fewer than
        there are. Returns how long those of each segment took, in ms.
        """
        told = {} if len(seen) != plan.partitions else _by_segment(plan, seen)
        spent_ms = dict[str, float]()
        for name, works in told.items():
            control, count = self.controls[name], len(works)
            control.resize(count, together)
            couriers, owner = control.couriers, control.owner
            spread = _spread(np.array([work.rows for work in works]))
            counted = [
                replace(task, loads={name: row}) for task, row in zip(seen, spread, strict=True)
            ]
            arrivals = arrivals_of(name, count, counted, self._delta_ms, since_ms, started_ms)
            done = np.bincount(owner, [work.done for work in works]).tolist()
            useful_ms = np.bincount(owner, [work.useful_ms for work in works]).tolist()
            control.examiner.epoch(
                written_ms,
                arrivals.horizon_ms,
                arrivals.counts,
                arrivals.first_m,
                arrivals.by_slot,
                owner,
                couriers,
                dict(zip(couriers, map(Work, map(int, done), useful_ms), strict=True)),
                arrivals.waited_ms + arrivals.by_slot * (written_ms - started_ms),
            )
            spent_ms[name] = max(useful_ms)
        return spent_ms


def _by_segment(plan: EpochPlan, seen: Sequence[Seen]) -> dict[str, list[MapWork]]:
    """What was told by every courier."""
    names = [name for name in plan.timed if all(name in task.maps for task in seen)]
    return {name: [task.maps[name] for task in seen] for name in names if seen}


def _spread(rows: Ints) -> Ints:
    """Rows of each partition, by the task among whose arrivals they are counted: among all, alike.

    A source may give each partition another part of the time that has passed: the last one would
    seem to bring all of what came of late.

    >>> _spread(np.array([10, 5, 0])).tolist()
    [[7, 3, 0], [3, 2, 0], [0, 0, 0]]
    """
    whole = np.outer(rows, rows) // max(1, int(rows.sum()))
    return whole + np.diag(rows - whole.sum(axis=0))
