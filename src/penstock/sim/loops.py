"""The two engines in time: the data plane goes on, control looks, and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.examine.epoch_cost import EpochCost
from penstock.control.examine.epoch_times import EpochTimes
from penstock.control.examine.vitals import Floats
from penstock.sim.epochs import Source, Spent
from penstock.sim.ledger import Ledger
from penstock.sim.plane import Following
from penstock.sim.queues import Queues
from penstock.sim.stage import Stage

Tell = Callable[[float], None]
"""Called after each look of control with the milliseconds that have passed in the simulation."""

_UNWATCHED = 1000
"""Time slots at once where nothing is under control."""


def continuous(
    stages: Sequence[Stage], following: Sequence[Following], per_look: int, tell: Tell
) -> None:
    """Record by record. Control looks after every `per_look` time slots."""
    ledger = stages[0].ledger
    queues = [Queues(stage.ledger, stage.fleet) for stage in stages]
    handed_on = [follower.fan_out * np.asarray(follower.shares) for follower in following]
    watched = any(stage.control is not None for stage in stages)
    step = per_look if watched else _UNWATCHED
    length = len(ledger.arrived)
    for look, first in enumerate(range(0, length, step), start=1):
        last = min(first + step, length)
        if len(stages) == 1:
            queues[0].advance(first, last)
        else:
            for m in range(first, last):
                queues[0].advance(m, m + 1)
                for n, per_record in enumerate(handed_on, start=1):
                    _hand_on(stages[n - 1].ledger, stages[n].ledger, per_record, m)
                    queues[n].advance(m, m + 1)
        now_ms = last * ledger.delta_ms
        for stage, queue in zip(stages, queues, strict=True):
            if stage.control is not None and last - first == step:
                rows = stage.ledger.latency[first:last]
                measured_ms = rows[0] if step == 1 else rows.sum(axis=0)
                stage.sample(look, queue.arrived, queue.completed, measured_ms)
            stage.decide(now_ms)
        tell(now_ms)


def _hand_on(before: Ledger, after: Ledger, per_record: Floats, m: int) -> None:
    """What one step completed in time slot m arrives at the next, with its age.

    `per_record` is what each slot there gets for a record here.
    """
    done = float(before.completed[m].sum())
    if done > 0:
        after.arrived[m] = done * per_record
        after.age_ms[m] = float(before.latency[m].sum() + before.carried[m].sum()) / done


def epochs(stages: Sequence[Stage], following: Sequence[Following], tell: Tell) -> None:
    """Epoch after epoch. Control looks twice: when it is known what one brings, and at its end.

    Hosts may be started in between. Slots move at the end.
    """
    ledger = stages[0].ledger
    end_ms = len(ledger.arrived) * ledger.delta_ms
    times = EpochTimes()
    source, cost = Source(ledger.arrived, ledger.delta_ms), EpochCost()
    put_out = [0] * len(following)
    began_ms, epoch = 0.0, 0
    while began_ms < end_ms:
        intakes = [source.take(began_ms)]
        for n, follower in enumerate(following):
            intakes.append(intakes[n].split(follower.fan_out, follower.shares, put_out[n]))
            put_out[n] += int(intakes[n].records.sum())
            stages[n + 1].ledger.arrive(intakes[n + 1].first, intakes[n + 1].records)
        efforts = [
            stage.begin_epoch(intake, began_ms)
            for stage, intake in zip(stages, intakes, strict=True)
        ]
        busy_ms = sum(effort.busy_ms for effort in efforts)
        done_ms = began_ms + stages[0].plane.epoch_cost_ms + busy_ms
        for stage, intake in zip(stages, intakes, strict=True):
            stage.read_epoch(intake, began_ms, cost.ms, epoch)
        cost.note(began_ms, done_ms, sum(effort.useful_ms for effort in efforts))
        if len(stages) > 1:
            spent_ms = {str(s.step): e.useful_ms for s, e in zip(stages, efforts, strict=True)}
            times.note(spent_ms, done_ms - began_ms)
            for stage in stages:
                left = times.left_to(stage.step, stage.bounds.share)
                stage.bounds = replace(stage.bounds, left=left)
        for stage, intake, effort in zip(stages, intakes, efforts, strict=True):
            spent = Spent(effort.busy_ms, busy_ms, stage.bounds.share)
            stage.end_epoch(intake, began_ms, done_ms, spent)
            stage.decide(done_ms, cost.ms, epoch)
        began_ms, epoch = done_ms, epoch + 1
        tell(min(done_ms, end_ms))
