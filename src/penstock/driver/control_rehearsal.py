"""Artificial decisions that compile control's kernels before the first real one.

Compilation takes up to half a minute of a core if numba's cache is empty. The control loop decides under a
lock, so a status request would wait that long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from penstock.control import events as ev
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.peaks import Peaks
from penstock.control.diagnose.project import Mm1
from penstock.control.diagnose.strategies import best_scale_in, best_spread
from penstock.control.elastic import Elastic
from penstock.control.examine.arrivals import arrivals_of
from penstock.control.examine.vitals import Ints, Vitals, Work
from penstock.control.record import Opening, StepFacts
from penstock.control.treat.decision import Bounds
from penstock.model import HostId, StepId
from penstock.offload.policy.flow import machine_of
from penstock.wire.report import Seen

_STEP, _SLOTS = "rehearsal", 8
_HOSTS = (HostId("rehearsal/0"), HostId("rehearsal/1"))
_PARTS = (slice(0, _SLOTS // 2), slice(_SLOTS // 2, _SLOTS))
"""The slots of each host."""
_EPOCHS, _EPOCH_MS = 12, 1_000.0
_TIME_SLOTS, _MISSING = 40, 2
_LOADS = ((1_000,) * _SLOTS, (1_000,) * 4 + (1,) * 4, (1,) * _SLOTS)
"""Records for each slot in an epoch, or a time slot: too many for both hosts, for one of them, and few."""
_RATE = 2_000
"""Records that a host can take in an epoch, or a time slot."""


def rehearse(opening: Opening, elastic: Elastic) -> None:
    """Run a copy of the control machine on an artificial step. A policy object of the user is replaced by
    "switch", since it may keep what it has seen."""
    if not isinstance(elastic.policy, str):
        elastic = replace(elastic, policy="switch")
    elastic = replace(elastic, functions=None, functions_at_most=None)
    steps = (StepFacts(_STEP, _SLOTS, merges=True),)
    opening = replace(opening, steps=steps, segments={}, whole={}, warm_epochs=1)
    play = _time_slots if opening.live else _epochs
    for load in _LOADS:
        machine = machine_of(opening, elastic)
        for event in play(np.array(load), opening.started_ms, machine.habits.delta_ms):
            machine.handle(event)
    _shrink(elastic.bounds(opening.sla))


def _shrink(bounds: Bounds) -> None:
    """Call the kernels of scale-in, which real decisions call after minutes of low load."""
    peaks = Peaks(memory_ms=1_000)
    peaks.note(0.0, np.ones(_SLOTS))
    peaks.per_host(_placement().owner, len(_HOSTS))
    vitals = Vitals.even(StepId(_STEP), [1.0] * _SLOTS, hosts=3, service_rate=100.0)
    load = Load.of(vitals, bounds, Mm1())
    assert load is not None
    best_scale_in(load)
    best_spread(load, 0.0)


def _placement() -> ev.StepPlacement:
    return ev.StepPlacement(_HOSTS, np.repeat(np.arange(2), _SLOTS // 2))


def _work(load: Ints, took_ms: float) -> dict[HostId, Work]:
    """The work of each host in an epoch, or in a time slot."""
    rows = {host: int(load[part].sum()) for host, part in zip(_HOSTS, _PARTS, strict=True)}
    return {host: Work(min(n, _RATE), took_ms * min(1.0, n / _RATE)) for host, n in rows.items()}


def _epochs(load: Ints, started_ms: float, delta_ms: float) -> Iterator[ev.Event]:
    """Epochs of a flow in micro-batches."""
    placement, rows = _placement(), int(load.sum())
    for epoch in range(_EPOCHS):
        since, now = started_ms + (epoch - 1) * _EPOCH_MS, started_ms + epoch * _EPOCH_MS
        arrivals = tuple(int(since + part * _EPOCH_MS / 4) for part in range(4))
        seen = Seen(rows, arrivals, (rows // 4,) * 4, loads={_STEP: load.astype(np.int64)})
        read = ev.StepRead(arrivals_of(_STEP, _SLOTS, [seen], delta_ms, since, now), placement)
        work = _work(load, _EPOCH_MS)
        sealed = ev.StepSealed(_HOSTS, placement.owner, work, _EPOCH_MS, placement)
        end = now + 0.9 * _EPOCH_MS
        yield ev.EpochDue(now)
        yield ev.EpochBegan(now, epoch)
        yield ev.EpochRead(now + 0.1 * _EPOCH_MS, epoch, {_STEP: read})
        yield ev.EpochSealed(end, epoch, end, end, {_STEP: sealed}, (seen,))


def _time_slots(load: Ints, started_ms: float, delta_ms: float) -> Iterator[ev.Event]:
    """Time slots of a live flow in which half of the rows are done. One report is missing."""
    placement, first = _placement(), int(started_ms / delta_ms)
    for number in range(1, _TIME_SLOTS):
        missing = number == _MISSING
        yield ev.TimeSlotEnded(
            started_ms + number * delta_ms,
            first + number,
            _STEP,
            np.full(_SLOTS, -1.0) if missing else number * load.astype(np.float64),
            np.full(_SLOTS, -1.0) if missing else number * load / 2,
            _HOSTS,
            placement.owner,
            _work(load, delta_ms),
            load.astype(np.float64) * delta_ms,
            placement,
            dict.fromkeys(_HOSTS, number * delta_ms / 2),
        )
