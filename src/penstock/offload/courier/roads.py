"""Chooses the roads of one task by the plan of the epoch: direct ones, or past burst workers."""

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
    """The roads of a task: direct ones, unless the plan sends rows to burst workers or times steps."""
    flow, plan = delivery.flow, delivery.plan
    roads = direct_roads(delivery)
    keyed = {str(routes.step): routes for routes in plan.steps if routes.offload is not None}
    stateless = dict(plan.map_offloads)
    if flow.one_host or not (keyed or stateless or plan.timed):
        return roads
    by_id = {segment.id: segment for segment in segments(flow)}
    for name in (*keyed, *stateless):
        _check(by_id.get(name), name)
    if plan.reach is None:
        keyed, stateless = {}, {}
    numbers = {step.id: number for number, step in enumerate(flow.steps)}
    for name, segment in by_id.items():
        number, maps = numbers[name], segment.maps
        if name in keyed:
            offload, time = keyed[name].offload, keyed[name].time
            assert offload is not None and segment.keyed is not None
            questions = Questions(delivery, segment, _limited(offload, delivery), time)
            road = roads[number] = BurstRoad(delivery, number, segment.keyed, questions)
            if maps:
                first = numbers[maps[0].id]
                roads[first] = LeavingRoad(delivery, first, maps[0], road.router)
        elif name in stateless or (segment.keyed is None and name in plan.timed):
            for step in maps[:-1]:
                roads[numbers[step.id]] = PassRoad(delivery, numbers[step.id])
            roads[number] = SegmentRoad(delivery, number, segment)
            if name in stateless:
                time = EpochTime(plan.epoch, 0)
                questions = Questions(delivery, segment, stateless[name], time)
                roads[number] = SharedSegmentRoad(delivery, number, segment, questions)
    return roads


class LeavingRoad(MapRoad):
    """The road of the first stateless step before a keyed one: rows for burst workers leave before it."""

    def __init__(self, delivery: Delivery, number: int, step: MapStep, router: Router) -> None:
        super().__init__(delivery, number, step)
        self._router = router

    def send(self, inputs: Sequence[Batches]) -> None:
        (rows,) = inputs
        super().send([self._router.through(rows)])


class PassRoad(Road):
    """The road of a stateless step that runs together with a later step of its segment."""

    def send(self, inputs: Sequence[Batches]) -> None:
        (self._rows,) = inputs

    def answer(self) -> Batches:
        return self._rows


def _limited(offload: Offload, delivery: Delivery) -> Offload:
    """A plan's offload for one courier. If it may use no burst workers, no rows leave."""
    if offload.at_once(delivery.task.partition, delivery.plan.partitions):
        return offload
    reflex = offload.reflex and replace(offload.reflex, limit=math.inf)
    return replace(offload, shares=np.zeros_like(offload.shares), reflex=reflex)


def _check(segment: Segment | None, name: str) -> None:
    """Raise an error if the plan sends rows of a segment to burst workers that cannot be offloaded."""
    if segment is None or not segment.offloadable:
        why = "there is no such segment" if segment is None else segment.reason
        raise ProtocolError(f"{name} cannot use burst workers: {why}")
