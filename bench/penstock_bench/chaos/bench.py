"""`penstock bench chaos`: the supervisor of a run.

It injects the scheduled faults, restarts dead drivers, lets the query catch up at the end, and compares the
sink with the oracle. If they differ, the run's folder is kept.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import PenstockError
from penstock_bench.chaos import load, oracle
from penstock_bench.chaos.arena import ChaosArena
from penstock_bench.chaos.cluster import cluster_ground
from penstock_bench.chaos.ground import Ground, LocalGround
from penstock_bench.chaos.kinds import KINDS
from penstock_bench.chaos.oracle import LogReader, SparkLog
from penstock_bench.chaos.outcome import ChaosOutcome, outcome_of
from penstock_bench.chaos.schedule import ChaosPlan, schedule
from penstock_bench.chaos.site import Driver, DriverProcess, LiveSite
from penstock_bench.report import Goal, Report, Show

T = TypeVar("T")
Look = Callable[[], SparkLog]
"""A function that reads Spark's current log."""

GOALS = {
    "faults": Goal(at_least=1000),
    "lost": Goal(at_most=0),
    "duplicated": Goal(at_most=0),
    "recover_p99_s": Goal(at_most=5),
}
_SECONDS, _QUICK_SECONDS = 2_100.0, 90.0
_UP_S, _CATCH_UP_S = 240.0, 300.0
_POLL_S, _LOOK_S, _LINE_S = 0.02, 0.5, 10.0
_HOLD_S = 1.5
"""Seconds without an epoch after which faults are postponed."""


def run(
    show: Show,
    quick: bool = False,
    seconds: float | None = None,
    seed: int | None = None,
    cluster: bool = False,
) -> Report:
    """Run one schedule, which takes a minute longer than its load."""
    length_s = seconds or (_QUICK_SECONDS if quick else _SECONDS)
    arena = ChaosArena(Path(tempfile.mkdtemp(prefix="penstock-chaos-")))
    keep = False
    try:
        with ExitStack() as ending:
            ground: Ground = LocalGround(arena)
            if cluster:
                ground = ending.enter_context(cluster_ground(arena, show))
            plan = ChaosPlan(1 if seed is None else seed, length_s, allows=ground.offers)
            outcome = chaos(plan, arena, ground, lambda: DriverProcess(arena), show)
        keep = not _right(outcome)
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            show(f"the run's folder is kept: {arena.root}")
        else:
            shutil.rmtree(arena.root, ignore_errors=True)
    return report(outcome)


def chaos(
    plan: ChaosPlan, arena: ChaosArena, ground: Ground, start: Callable[[], Driver], show: Show
) -> ChaosOutcome:
    """Do one run in this folder, with the driver that `start` returns. Leaves nothing running."""
    faults, log = schedule(plan), LogReader(ground.log())
    show(f"seed {plan.seed}: {len(faults)} faults in {plan.seconds:.0f} s; in {arena.root}")
    arena.open(plan, ground.bearings)

    def look() -> SparkLog:
        return log.read(arena.began)

    with ExitStack() as ending:
        driver = start()
        ending.callback(driver.end)
        ending.callback(arena.stop)
        ground.load()
        site = LiveSite(arena, driver, ground)
        ending.callback(site.end)
        _do(plan, arena, driver, site, look, show)
        show("no more faults; waiting for the query to catch up")
        site.end()
        _catch_up(plan, driver, look)
    final_log = look()
    difference = oracle.difference(oracle.expected(plan, final_log), oracle.read_sink(arena.sink))
    outcome = outcome_of(
        plan,
        final_log,
        faults,
        arena.book.happened(),
        arena.notes("epochs"),
        len(arena.notes("starts")),
        [note["message"] for note in arena.notes("ends")],
        difference,
    )
    _summarize(outcome, show)
    return outcome


def _do(
    plan: ChaosPlan, arena: ChaosArena, driver: Driver, site: LiveSite, look: Look, show: Show
) -> None:
    """Inject all faults, each when it is due.

    While no epoch completes for some time, faults are postponed, and so are all later ones. On a slow machine
    faults are therefore spread out and do not pile up.
    """
    pause, waiting = threading.Event(), list(schedule(plan))
    began = _until(lambda: look().began, _UP_S, "the load began", driver, may_die=False)
    start_s = began.start_ms / 1000
    shown_s, deaths, late_s, last_s = time.monotonic(), 0, 0.0, time.time()
    while (now_s := time.time()) < start_s + plan.seconds:
        site.tick()
        deaths += driver.keep_up()
        if now_s > arena.newest_s("epochs") + _HOLD_S:
            late_s += now_s - last_s
        last_s = now_s
        while waiting and start_s + waiting[0].at_s + late_s <= now_s:
            due = waiting.pop(0)
            KINDS[due.kind].begin(site, due)
        if time.monotonic() - shown_s >= _LINE_S:
            shown_s += _LINE_S
            show(_line(arena, time.time() - start_s, deaths))
        pause.wait(_POLL_S)


def _catch_up(plan: ChaosPlan, driver: Driver, look: Look) -> None:
    """Wait until all rows are processed and the windows that they closed are in the sink."""
    began = _until(lambda: look().began, _UP_S, "the load began", driver)
    total = began.first + int(load.arrivals(plan).cumulative(1000 * plan.seconds))

    def caught_up() -> bool:
        log = look()
        full = [epoch for epoch in log.ends if log.row(epoch) >= total]
        return bool(full) and log.committed >= min(full) + 2

    _until(caught_up, _CATCH_UP_S, f"all {total:,} rows were processed", driver)


def _until(
    look: Callable[[], T | None], timeout_s: float, event: str, driver: Driver, may_die: bool = True
) -> T:
    """Poll until `look` returns something, and restart the driver meanwhile if it dies."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not (result := look()):
        if driver.keep_up() and not may_die:
            raise PenstockError(f"the driver died before {event}", hint="see its driver.log")
        if time.monotonic() > deadline:
            raise PenstockError(f"more than {timeout_s:.0f} s passed before {event}")
        pause.wait(_LOOK_S)
    return result


def _right(outcome: ChaosOutcome) -> bool:
    return not (outcome.difference.first or outcome.late)


def _line(arena: ChaosArena, at_s: float, deaths: int) -> str:
    happened, epochs = len(arena.book.happened()), len(arena.notes("epochs"))
    failed = len(arena.notes("ends"))
    return (
        f"{at_s:5.0f} s: {happened} faults, {epochs} epochs, {failed} failures of the query, "
        f"{deaths} deaths of its driver"
    )


def _summarize(outcome: ChaosOutcome, show: Show) -> None:
    for kind in outcome.kinds:
        times = ""
        if kind["happened"]:
            times = f", recovery median {kind['p50_s']:.2f} s, maximum {kind['max_s']:.2f} s"
        show(f"{kind['kind']:<28} {kind['happened']:4d} of {kind['due']:4d}{times}")
    difference = outcome.difference
    show(
        f"{difference.expected:,} rows in {outcome.epochs} epochs, {outcome.starts} starts; "
        f"{difference.lost} lost, {difference.duplicated} duplicated, {outcome.late} late"
    )
    if difference.first:
        show(f"seed {outcome.plan.seed}: {difference.first}")


def report(outcome: ChaosOutcome) -> Report:
    """The report of a run."""
    happened = [fault for fault in outcome.faults if fault["happened_s"] is not None]
    facts: dict[str, Any] = asdict(outcome)
    plan = facts.pop("plan")
    return Report(
        "chaos",
        settings={
            **plan,
            **{"hosts": load.HOSTS, "keys": load.KEYS, "rate": load.RATE},
            "host_lost_ms": load.HOST_LOST_MS,
        },
        results=facts,
        ratios={
            "faults": float(len(happened)),
            "lost": float(outcome.difference.lost),
            "duplicated": float(outcome.difference.duplicated),
            "recover_p99_s": outcome.recover_p99_s,
            "success_during_faults": outcome.success,
        },
    )
