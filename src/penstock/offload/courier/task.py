"""What of a flow one task hands to functions, by the plan of the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.courier.exchange import Task
from penstock.courier.trouble import Trouble
from penstock.errors import ProtocolError
from penstock.offload.backends.backend import Usage, invoker_at
from penstock.offload.courier.questions import Asking
from penstock.offload.courier.redirect import Redirect
from penstock.offload.courier.report import Offloaded, Routed
from penstock.offload.courier.stateless import MapOffload
from penstock.offload.courier.stateless_work import MapSegment, MapWork
from penstock.offload.plan.segments import Segment, segments
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep


class Offloads:
    """The segments of which the plan names a share, or wants to be told what they take.

    In most flows there are none, and it does nothing.
    """

    def __init__(self, flow: FlowPlan, plan: EpochPlan, task: Task, trouble: Trouble) -> None:
        self._flow, self._plan, self._task, self._trouble = flow, plan, task, trouble
        self._used = Usage()
        self._keyed: dict[str, Redirect] = {}
        """By the keyed step."""
        self._entries: dict[str, Redirect] = {}
        """By the stateless step before which rows leave."""
        self._maps: dict[str, MapOffload] = {}
        """By the last of their stateless steps."""
        self._segments: dict[str, MapSegment] = {}
        """So, too: what the courier itself does of them, or of those that are only timed."""
        self._inner: set[str] = set()
        """Stateless steps that are done together with a later one."""
        shares = {routes.step: routes for routes in plan.steps if routes.offload is not None}
        if not shares and not plan.map_offloads and not plan.timed:
            return
        found = {segment.id: segment for segment in segments(flow)}
        for step, routes in shares.items():
            assert routes.offload is not None
            self._redirect(_offloadable(found, step), routes.offload, routes.time)
        for segment in found.values():
            if segment.keyed is None and segment.id in plan.timed:
                self._own(segment)
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
        if step.id in self._segments:
            return self._segments[step.id].through(batches)
        if step.id in self._entries:
            batches = self._entries[step.id].router.through(batches)
        return self._trouble.mapped(step, batches)

    def tell_later(self) -> bool:
        """Whether there is something to tell of what comes behind the last keyed step."""
        trailing: set[str] = set()
        for step in self._flow.steps:
            trailing = trailing | {step.id} if isinstance(step, MapStep) else set()
        return bool(trailing & {*self._maps, *self._plan.timed})

    def worked(self) -> dict[str, MapWork]:
        """What the courier has done so far of the segments that are timed."""
        return {name: self._segments[name].work for name in self._plan.timed}

    def facts(self) -> list[Offloaded]:
        """What there is to tell so far."""
        asking: list[Redirect | MapOffload] = [*self._keyed.values(), *self._maps.values()]
        return [fact for one in asking for fact in one.facts]

    def routed(self) -> dict[str, Routed]:
        """What has come by where rows leave for functions, by segment, where that is to be told."""
        return {name: one.routed for name, one in self._keyed.items() if one.routed is not None}

    def used(self) -> Usage:
        """What the task's way to functions has counted so far, if it asked any."""
        if self._plan.functions is not None and self.facts():
            with suppress(Exception):  # there was no way to them
                self._used += invoker_at(self._plan.functions).taken()
        return self._used

    def _redirect(self, segment: Segment, offload: Offload, time: EpochTime) -> None:
        assert segment.keyed is not None
        nothing = np.zeros_like(offload.shares)
        if self._plan.functions is None:
            offload = replace(offload, shares=nothing, reflex=None)
        elif not offload.at_once(self._task.partition, self._plan.partitions):
            reflex = offload.reflex and replace(offload.reflex, limit=math.inf)
            offload = replace(offload, shares=nothing, reflex=reflex)
        made = Redirect(self._asking(segment, offload, time), segment.keyed, self._trouble)
        self._keyed[segment.id] = made
        if segment.maps:
            self._entries[segment.maps[0].id] = made

    def _own(self, segment: Segment) -> MapSegment:
        if segment.id not in self._segments:
            made = MapSegment(segment.maps, self._trouble)
            self._segments[segment.id] = made
            self._inner.update(step.id for step in segment.maps[:-1])
        return self._segments[segment.id]

    def _map(self, segment: Segment, offload: Offload) -> None:
        asking = self._asking(segment, offload, EpochTime(self._plan.epoch, 0))
        self._maps[segment.id] = MapOffload(asking, self._own(segment))

    def _asking(self, segment: Segment, offload: Offload, time: EpochTime) -> Asking:
        return Asking(self._flow, self._plan, self._task, segment, offload, time)


def _offloadable(found: dict[str, Segment], name: str) -> Segment:
    """The segment that a plan names, if rows of it may go to functions."""
    segment = found.get(name)
    if segment is None or not segment.offloadable:
        why = "there is no such segment" if segment is None else segment.reason
        raise ProtocolError(f"a plan hands rows of {name} to functions: {why}")
    return segment
