"""Burst workers in this process, and plans that send them rows of all segments that can be offloaded."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.control.elastic import Elastic
from penstock.offload.backends.backend import WorkerFailed, keep_invoker, remove_invoker
from penstock.offload.backends.messages import Request, WorkerAnswer
from penstock.offload.backends.worker import BurstWorker
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.plan.segments import live_segment, segments
from penstock.operators.operator import PARTIALS, ROWS
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.reflex import Reflex
from penstock.plan.steps import FlowPlan
from penstock.wire.live import Guides, StepGuide
from penstock.wire.report import Usage
from tests.trials.cluster import MiniCluster

Chances = Mapping[str, int]
"""Behaviour of a burst worker -> its weight among all behaviours."""

WELL: Chances = {"answer": 1}
ANYHOW: Chances = {
    "answer": 12,
    "fail": 2,
    "throttle": 2,
    "garbage": 1,
    "again": 2,
    "another": 1,
    "strange": 1,
    "hang": 1,
}
"""answer: the right answer. again: an earlier answer. another: an answer of the wrong kind. strange: an
answer with other columns. hang: the answer comes after the deadline."""

_numbers = itertools.count()


class StandIn:
    """An invoker that does the real work, or fails in one of several ways. See `Invoker`."""

    request_limit: int | None = None

    def __init__(self, flow: FlowPlan, chances: Chances, seed: int = 0) -> None:
        self.did: Counter[str] = Counter()
        self.asked = 0
        """Number of requests so far, for tests that change the behaviour."""
        self.chances = chances
        self.over = threading.Event()
        self._worker, self._pick = BurstWorker(flow), random.Random(seed)
        self._lock, self._last, self._taken = threading.Lock(), b"", 0

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        with self._lock:
            [does] = self._pick.choices([*self.chances], [*self.chances.values()])
            self.did[does] += 1
            self._taken += 1
            last = self._last
        if does == "fail":
            raise WorkerFailed("it died")
        if does == "throttle":
            raise WorkerFailed("all are busy", failure="throttled")
        if does == "garbage":
            return request[: len(request) // 2]
        if does == "again":
            return last
        answer = self._worker.answer(request)
        with self._lock:
            self._last = answer
        if does == "hang":
            self.over.wait(3 * timeout_ms / 1000)
        if does in ("another", "strange"):
            return _changed(does, answer, Request.from_bytes(request))
        return answer

    def close(self) -> None: ...

    def taken(self) -> Usage:
        with self._lock:
            taken, self._taken = self._taken, 0
        return Usage(invocations=taken, seconds=0.1 * taken, money=0.001 * taken)


def _changed(does: str, body: bytes, request: Request) -> bytes:
    answer = WorkerAnswer.from_bytes(body, request)
    if does == "another":
        answer = replace(answer, kind=ROWS if answer.kind == PARTIALS else PARTIALS)
    strange = pa.record_batch({"nobody": [1, 2], "asked": ["for", "it"]})
    return (replace(answer, batches=(strange,)) if does == "strange" else answer).to_bytes()


class Helped:
    """Puts shares for burst workers into the plans of a flow: different ones in each run of each epoch."""

    workers: StandIn

    def __init__(self, flow: FlowPlan, text: str, seed: int, deadline_ms: int) -> None:
        self.text = text
        """Reach text by which couriers connect to the burst workers."""
        self.chance = 0.9
        """Probability that a segment gets a share."""
        self._seed, self._deadline_ms = seed, deadline_ms
        self._segments = [segment for segment in segments(flow) if segment.offloadable]
        assert self._segments, "nothing can go to burst workers"
        self._keyed = flow.keyed
        keyed = (segment for segment in segments(flow) if segment.keyed is not None)
        self._live = {segment.id: live_segment(segment) for segment in keyed}

    def __call__(self, plan: EpochPlan) -> EpochPlan:
        pick = random.Random(f"{self._seed} {plan.epoch} {plan.run}")
        keyed = {one.id: one for one in self._segments if one.keyed is not None}
        steps = tuple(
            replace(routes, offload=self._offload(pick, len(routes.routes.owner), reacts=True))
            if routes.step in keyed and pick.random() < self.chance
            else routes
            for routes in plan.steps
        )
        maps = tuple(
            (one.id, self._offload(pick, 1))
            for one in self._segments
            if one.keyed is None and pick.random() < self.chance
        )
        return replace(plan, steps=steps, reach=self.text, map_offloads=maps)

    def guides(self, pick: random.Random) -> Guides:
        """Guides for live couriers: shares for steps that burst workers can help, for a while."""
        steps = []
        for step in self._keyed:
            segment = self._live.get(step.id)
            offload = None
            if segment is not None and segment.offloadable and pick.random() < self.chance:
                offload = self._offload(pick, step.slots, reacts=True)
                reflex = offload.reflex and replace(offload.reflex, within_ms=100.0)
                offload = replace(offload, reflex=reflex)
            watched = tuple(pick.sample(range(step.slots), pick.randint(0, 3)))
            steps.append(StepGuide(step.id, watched, pick.random() < 0.3, offload))
        return Guides(tuple(steps), self.text)

    def _offload(self, pick: random.Random, slots: int, reacts: bool = False) -> Offload:
        shares = [pick.choice((0.0, 1.0, pick.random(), pick.random())) for _ in range(slots)]
        reflex = None
        if reacts and pick.random() < 0.5:
            shares = [share * pick.choice((0.0, 0.2)) for share in shares]
            limit = pick.uniform(0, 40)
            reflex = Reflex(limit, limit * pick.random(), 5.0, pick.random() / 2, 8)
        return Offload(np.array(shares), pick.randint(1, 8), self._deadline_ms, reflex=reflex)


@contextmanager
def helped(
    flow: FlowPlan, chances: Chances = WELL, seed: int = 0, deadline_ms: int = 10_000
) -> Iterator[Helped]:
    """Burst workers for a flow that any courier in this process can reach."""
    text = json.dumps({"kind": "stand-in", "number": next(_numbers)})
    made = Helped(flow, text, seed, deadline_ms)
    made.workers = StandIn(flow, chances, seed)
    keep_invoker(text, made.workers)
    try:
        yield made
    finally:
        made.workers.over.set()
        remove_invoker(text)


# -- under control


@dataclass
class Kept:
    """The driver's handle of burst workers in this process. See `BurstWorkers`."""

    reach: str
    workers: StandIn
    noted: Usage = field(default_factory=Usage)

    def warm(self, count: int) -> None:
        pass

    def note(self, usage: Usage) -> None:
        self.noted += usage

    def used(self) -> Usage:
        return self.noted

    def stop(self) -> None:
        self.workers.over.set()


class KeptCluster(MiniCluster):
    """A cluster whose control has burst workers in this process."""

    def __init__(self, flow: FlowPlan, store: str, elastic: Elastic, **others: Any) -> None:
        self.kept: list[Kept] = []
        self.keeper = WorkerKeeper(self._bring_up)
        self.plans: list[EpochPlan] = []
        self._name = store
        super().__init__(flow, store, elastic=elastic, keeper=self.keeper, **others)
        self.keeper.start()
        self.settle()

    def _bring_up(self) -> Kept:
        text = f"{self._name} {len(self.kept)}"
        self.kept.append(Kept(text, StandIn(self.flow, WELL)))
        keep_invoker(text, self.kept[-1].workers)
        return self.kept[-1]

    def settle(self) -> None:
        """Wait until the keeper has done all its background work."""
        self.keeper._worker.submit(lambda: None).result()

    def become(self, chances: Chances) -> None:
        """Change the behaviour of burst workers from now on."""
        self.kept[-1].workers.chances = chances

    def offload_facts(self) -> list[dict[str, Any]]:
        """Facts of the journal's entries about offloading."""
        assert self.control is not None
        return [e.facts for e in self.control.journal.last(1000) if e.event == "offload"]

    def plan_of_run(self, plan: EpochPlan) -> EpochPlan:
        self.plans.append(plan)
        return super().plan_of_run(plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self.keeper.stop()
        for one in self.kept:
            remove_invoker(one.reach)
