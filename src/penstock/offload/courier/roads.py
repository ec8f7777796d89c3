"""The roads of one task where burst workers may help, by the plan of the epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.courier.delivery import Delivery
from penstock.courier.roads import Batches, MapRoad, Road, direct_roads
from penstock.errors import ProtocolError
from penstock.offload.courier.keyed_road import BurstRoad
from penstock.offload.courier.questions import Questions
from penstock.offload.courier.router import Router
from penstock.offload.courier.stateless_road import SegmentRoad, SharedSegmentRoad
from penstock.offload.plan.segments import Segment, segments
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import Offload
from penstock.plan.steps import MapStep


def burst_roads(delivery: Delivery) -> list[Road]:
    """The roads of a task: direct ones, but where the plan hands rows to burst workers, or times steps."""
    flow, plan = delivery.flow, delivery.plan
    roads = direct_roads(delivery)
    shares = {str(routes.step): routes for routes in plan.steps if routes.offload is not None}
    maps = {} if plan.functions is None else dict(plan.map_offloads)
    if flow.one_host or not (shares or maps or plan.timed):
        return roads
    numbers = {step.id: number for number, step in enumerate(flow.steps)}
    found = {segment.id: segment for segment in segments(flow)}
    for name in (*shares, *maps):
        _check(found.get(name), name)
    for name, segment in found.items():
        number = numbers[name]
        if name in shares:
            offload, keyed = shares[name].offload, segment.keyed
            assert offload is not None and keyed is not None
            questions = Questions(delivery, segment, _limited(offload, delivery), shares[name].time)
            road = roads[number] = BurstRoad(delivery, number, keyed, questions)
            if segment.maps:
                first = numbers[segment.maps[0].id]
                roads[first] = LeavingRoad(delivery, first, segment.maps[0], road.router)
        elif segment.keyed is None and (name in maps or name in plan.timed):
            for step in segment.maps[:-1]:
                roads[numbers[step.id]] = PassRoad(delivery, numbers[step.id])
            if name in maps:
                time = EpochTime(plan.epoch, 0)
                questions = Questions(delivery, segment, maps[name], time)
                roads[number] = SharedSegmentRoad(delivery, number, segment, questions)
            else:
                roads[number] = SegmentRoad(delivery, number, segment)
    return roads


class LeavingRoad(MapRoad):
    """The first stateless step in front of a keyed one: rows for burst workers leave before it."""

    def __init__(self, delivery: Delivery, number: int, step: MapStep, router: Router) -> None:
        super().__init__(delivery, number, step)
        self._router = router

    def send(self, inputs: Sequence[Batches]) -> None:
        (rows,) = inputs
        super().send([self._router.through(rows)])


class PassRoad(Road):
    """A stateless step that is done together with a later one of its segment."""

    def send(self, inputs: Sequence[Batches]) -> None:
        (self._rows,) = inputs

    def answer(self) -> Batches:
        return self._rows


def _limited(offload: Offload, delivery: Delivery) -> Offload:
    """What of a plan's offload holds for one courier: no rows leave where it may ask nobody."""
    plan, nothing = delivery.plan, np.zeros_like(offload.shares)
    if plan.functions is None:
        return replace(offload, shares=nothing, reflex=None)
    if not offload.at_once(delivery.task.partition, plan.partitions):
        reflex = offload.reflex and replace(offload.reflex, limit=math.inf)
        return replace(offload, shares=nothing, reflex=reflex)
    return offload


def _check(segment: Segment | None, name: str) -> None:
    """Refuse a plan that hands rows of this segment to burst workers if that cannot be."""
    if segment is None or not segment.offloadable:
        why = "there is no such segment" if segment is None else segment.reason
        raise ProtocolError(f"a plan hands rows of {name} to burst workers: {why}")
