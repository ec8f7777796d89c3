"""The part `sla`: an SLA of milliseconds, on a steady load and through a move, by receipt from Kafka.

`sla(latency="50ms", window="1s")` is kept in a window if the rows that were received in it took 50 ms or less
from produce to receipt, on average. Windows end every 100 ms; each slot is judged, as elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.model import SLA
from penstock.state.keys.codec import int_keys, slots_of
from penstock_bench.live import measures
from penstock_bench.live.arena import KEYS, live_arena
from penstock_bench.live.latency import truth_of
from penstock_bench.live.measures import Received
from penstock_bench.live.sides.spark_side import SLOTS
from penstock_bench.report import Goal, PartResult, Show

GOALS = {"sla_50ms_steady": Goal(at_least=0.99), "sla_50ms_through_move": Goal(at_least=0.99)}
BOUND = SLA(50, 1_000)


@dataclass(frozen=True)
class SlaScale:
    """How much of it to run."""

    rate: int = 5_000
    warm_s: float = 20.0
    steady_s: float = 30.0
    moved_s: float = 20.0
    """Seconds of load that are judged with a move, which comes after a quarter of them."""


FULL, QUICK = SlaScale(), SlaScale(warm_s=6.0, steady_s=8.0, moved_s=8.0)


def run(show: Show, quick: bool = False) -> PartResult:
    """Run it; takes a minute and a half, half a minute when quick."""
    scale = QUICK if quick else FULL
    with live_arena(show) as arena, arena.running("penstock_live") as (side, load):
        load.warm(scale.warm_s)
        with load.producing(scale.rate, scale.steady_s + scale.moved_s + 2):
            time.sleep(1)
            begin_us = time.time_ns() // 1000
            time.sleep(scale.steady_s + scale.moved_s / 4)
            side.must_run()
            moved_us = time.time_ns() // 1000
            side.tell("move")
        received = load.end()
        right = load.right(received)
    middle_us = moved_us - int(scale.moved_s / 4 * 1e6)
    results: dict[str, Any] = {
        "steady": judged(received, begin_us, scale.steady_s),
        "through_move": judged(received, middle_us, scale.moved_s),
        "moved_at_s": scale.moved_s / 4,
        "right": right,
    }
    for name in ("steady", "through_move"):
        one = results[name]
        show(
            f"sla of 50 ms, {name}: kept in {one['success']:.2%} of windows by slot, "
            f"{one['success_of_all']:.2%} of all rows'; p99 {one['p99_ms']:.1f} ms"
        )
    sla = {"latency_ms": BOUND.latency_ms, "window_ms": BOUND.window_ms}
    return PartResult(asdict(scale) | {"keys": KEYS, "slots": SLOTS, "sla": sla}, results)


def judged(received: Received, from_us: int, seconds: float) -> dict[str, Any]:
    """How often the bound was kept for the rows produced in these seconds, and how long they took.

    An update stands for its newest row: of rows that were taken together, the others are not seen.
    """
    some = measures.between(received, from_us, from_us + int(seconds * 1e6))
    some = some[np.argsort(some[:, 1], kind="stable")]
    t_us, done_ms = some[:, 1] - from_us, (some[:, 0] - from_us) / 1000
    slot = np.asarray(slots_of(int_keys(some[:, 2]).hashes, SLOTS), np.int64)
    by_slot = truth_of(t_us, slot, done_ms, SLOTS, seconds)
    of_all = truth_of(t_us, np.zeros_like(slot), done_ms, 1, seconds)
    return asdict(measures.latency(some)) | {
        "success": float(by_slot.success(BOUND, 0).mean()),
        "success_of_worst_slot": float(by_slot.success(BOUND, 0).min()),
        "success_of_all": float(of_all.success(BOUND, 0).mean()),
        "by_100ms": measures.by_bin(some, from_us, int(seconds * 10)),
    }


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The share of windows in which the bound was kept, over all slots."""
    return {f"sla_50ms_{name}": results[name]["success"] for name in ("steady", "through_move")}
