"""What of a flow one task hands to functions, by the plan of the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.courier.asking import Asking
from penstock.courier.exchange import Task
from penstock.courier.offload_maps import MapOffload
from penstock.courier.offloaded import Offloaded
from penstock.courier.redirect import Redirect
from penstock.courier.trouble import Trouble
from penstock.errors import ProtocolError
from penstock.functions.port import Usage
from penstock.functions.reach import invoker_at
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.offload import Segment, segments
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep


class Offloads:
    """The segments of which the plan names a share. In most epochs there are none, and it does nothing."""

    def __init__(self, flow: FlowPlan, plan: EpochPlan, task: Task, trouble: Trouble) -> None:
        self._flow, self._plan, self._task, self._trouble = flow, plan, task, trouble
        self._keyed: dict[str, Redirect] = {}
        """By the keyed step."""
        self._entries: dict[str, Redirect] = {}
        """By the stateless step before which rows leave."""
        self._maps: dict[str, MapOffload] = {}
        """By the last of their stateless steps."""
        self._inner: set[str] = set()
        """Stateless steps that are done together with a later one."""
        shares = {routes.step: routes for routes in plan.steps if routes.offload is not None}
        if not shares and not plan.map_offloads:
            return
        found = {segment.id: segment for segment in segments(flow)}
        for step, routes in shares.items():
            assert routes.offload is not None
            self._redirect(_offloadable(found, step), routes.offload, routes.time)
        for name, offload in plan.map_offloads:
            if plan.functions is not None:
                self._map(_offloadable(found, name), offload)

    def redirect(self, step: KeyedStep) -> Redirect | None:
        """How rows of a keyed step go to functions; None: they do not."""
        return self._keyed.get(step.id)

    def mapped(self, step: MapStep, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """What a stateless step gives."""
        if step.id in self._inner:
            return batches
        if step.id in self._maps:
            return self._maps[step.id].through(batches)
        if step.id in self._entries:
            batches = self._entries[step.id].router.through(batches)
        return self._trouble.mapped(step, batches)

    def end_in_functions(self) -> bool:
        """Whether functions are asked after the last keyed step has sent all that it does."""
        trailing: set[str] = set()
        for step in self._flow.steps:
            trailing = trailing | {step.id} if isinstance(step, MapStep) else set()
        return bool(trailing & set(self._maps))

    def facts(self) -> list[Offloaded]:
        """What there is to tell so far."""
        asking: list[Redirect | MapOffload] = [*self._keyed.values(), *self._maps.values()]
        return [fact for one in asking for fact in one.facts]

    def used(self) -> Usage:
        """What the task's way to functions has counted, if it asked any."""
        if self._plan.functions is None or not self.facts():
            return Usage()
        try:
            return invoker_at(self._plan.functions).taken()
        except Exception:
            return Usage()  # there was no way to them

    def _redirect(self, segment: Segment, offload: Offload, time: EpochTime) -> None:
        assert segment.keyed is not None
        if self._plan.functions is None:
            offload = replace(offload, shares=np.zeros_like(offload.shares))
        made = Redirect(self._asking(segment, offload, time), segment.keyed, self._trouble)
        self._keyed[segment.id] = made
        if segment.maps:
            self._entries[segment.maps[0].id] = made

    def _map(self, segment: Segment, offload: Offload) -> None:
        asking = self._asking(segment, offload, EpochTime(self._plan.epoch, 0))
        self._maps[segment.id] = MapOffload(asking, self._trouble)
        self._inner.update(step.id for step in segment.maps[:-1])

    def _asking(self, segment: Segment, offload: Offload, time: EpochTime) -> Asking:
        return Asking(self._flow, self._plan, self._task, segment, offload, time)


def _offloadable(found: dict[str, Segment], name: str) -> Segment:
    """The segment that a plan names, if rows of it may go to functions."""
    segment = found.get(name)
    if segment is None or not segment.offloadable:
        why = "there is no such segment" if segment is None else segment.reason
        raise ProtocolError(f"a plan hands rows of {name} to functions: {why}")
    return segment
