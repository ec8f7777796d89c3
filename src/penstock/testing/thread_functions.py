"""Functions (burst workers) in this process, for flows under test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from penstock.errors import FlowError, SettingError
from penstock.offload.backends.backend import keep_invoker, remove_invoker
from penstock.offload.backends.worker import BurstWorker
from penstock.offload.plan.segments import segments
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.steps import FlowPlan
from penstock.wire.report import Usage

_WORKERS = 4
"""Maximum number of functions that run at the same time."""
_DEADLINE_MS = 30_000

_numbers = itertools.count()


class ThreadInvoker:
    """Runs a function in the courier's own thread. See `Invoker`."""

    request_limit: int | None = None

    def __init__(self, flow: FlowPlan) -> None:
        self._worker = BurstWorker(flow)

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        return self._worker.answer(request)

    def taken(self) -> Usage:
        return Usage()

    def close(self) -> None:
        """Do nothing, since no resources are held."""


class ThreadFunctions:
    """Changes the plan of each run so that a share of the rows, from 0 to 1, goes to functions."""

    def __init__(self, flow: FlowPlan, share: float, reach: str) -> None:
        self._share, self._reach = share, reach
        all_segments = segments(flow)
        self._segments = [segment for segment in all_segments if segment.offloadable]
        if not 0 < share <= 1:
            raise SettingError(f"functions is {share:g}", hint="use a share above 0, and up to 1")
        if not self._segments:
            reasons = "; ".join(f"{segment.id}: {segment.reason}" for segment in all_segments)
            raise FlowError(
                f"no step of this flow can run in functions ({reasons})",
                hint="leave out functions=...",
            )

    def plan_of_run(self, plan: EpochPlan) -> EpochPlan:
        keyed = {segment.id for segment in self._segments if segment.keyed is not None}
        maps = tuple(
            (segment.id, self._offload(1)) for segment in self._segments if segment.keyed is None
        )
        steps = tuple(
            replace(routes, offload=self._offload(len(routes.routes.owner)))
            if routes.step in keyed
            else routes
            for routes in plan.steps
        )
        return replace(plan, steps=steps, map_offloads=maps, reach=self._reach)

    def _offload(self, slots: int) -> Offload:
        return Offload(np.full(slots, self._share), _WORKERS, _DEADLINE_MS)


@contextmanager
def thread_functions(flow: FlowPlan, share: float) -> Iterator[ThreadFunctions]:
    """Functions for a flow, for the duration of the context."""
    reach = f"thread {next(_numbers)}"
    functions = ThreadFunctions(flow, share, reach)
    keep_invoker(reach, ThreadInvoker(flow))
    try:
        yield functions
    finally:
        remove_invoker(reach)
