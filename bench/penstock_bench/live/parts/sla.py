"""The part `sla`: an SLA of milliseconds, at a steady load and during a move, measured by a Kafka consumer.

`sla(latency="50ms", window="1s")` is kept in a window if the rows received in it took at most 50 ms from
produce to receipt, on average. Windows end every 100 ms, and are evaluated for each slot.
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
    """Size of the benchmark."""

    rate: int = 5_000
    warm_s: float = 20.0
    steady_s: float = 30.0
    moved_s: float = 20.0
    """Measured seconds of load with a move, which comes after a quarter of them."""


FULL, QUICK = SlaScale(), SlaScale(warm_s=6.0, steady_s=8.0, moved_s=8.0)


def run(show: Show, quick: bool = False) -> PartResult:
    """Run it, which takes a minute and a half, or half a minute when quick."""
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
        result = results[name]
        show(
            f"SLA of 50 ms, {name}: kept in {result['success']:.2%} of windows by slot, and in "
            f"{result['success_of_all']:.2%} over all rows; p99 {result['p99_ms']:.1f} ms"
        )
    sla = {"latency_ms": BOUND.latency_ms, "window_ms": BOUND.window_ms}
    return PartResult(asdict(scale) | {"keys": KEYS, "slots": SLOTS, "sla": sla}, results)


def judged(received: Received, from_us: int, seconds: float) -> dict[str, Any]:
    """Success and latency of the rows produced in these seconds.

    An update counts only for its newest row. If rows were processed together, the others are not measured.
    """
    updates = measures.between(received, from_us, from_us + int(seconds * 1e6))
    updates = updates[np.argsort(updates[:, 1], kind="stable")]
    t_us, done_ms = updates[:, 1] - from_us, (updates[:, 0] - from_us) / 1000
    slot = np.asarray(slots_of(int_keys(updates[:, 2]).hashes, SLOTS), np.int64)
    by_slot = truth_of(t_us, slot, done_ms, SLOTS, seconds)
    of_all = truth_of(t_us, np.zeros_like(slot), done_ms, 1, seconds)
    return asdict(measures.latency(updates)) | {
        "success": float(by_slot.success(BOUND, 0).mean()),
        "success_of_worst_slot": float(by_slot.success(BOUND, 0).min()),
        "success_of_all": float(of_all.success(BOUND, 0).mean()),
        "by_100ms": measures.by_bin(updates, from_us, int(seconds * 10)),
    }


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Share of windows in which the bound was kept, over all slots."""
    return {f"sla_50ms_{name}": results[name]["success"] for name in ("steady", "through_move")}
