"""The part `transactional`: `delivery="transactional"` over Kafka, with a consumer that reads committed rows.

Rows become visible when their epoch is durable, so latency is compared with the time between checkpoints.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from penstock_bench.live import measures
from penstock_bench.live.arena import KEYS, LiveArena, live_arena
from penstock_bench.report import Goal, PartResult, Show

GOALS = {"transactional_p99_over_interval": Goal(at_most=2.5)}
JUDGED_MS = 1_000
"""Milliseconds between checkpoints for which the goal is set: the default."""


@dataclass(frozen=True)
class TransactionalScale:
    """Size of the benchmark."""

    intervals_ms: tuple[int, ...] = (1_000, 200)
    """Milliseconds between checkpoints, one value per run."""
    rate: int = 10_000
    warm_s: float = 15.0
    seconds: float = 20.0


FULL, QUICK = TransactionalScale(), TransactionalScale((1_000,), warm_s=6.0, seconds=8.0)


def run(show: Show, quick: bool = False) -> PartResult:
    """Run this part, which takes a minute and a half, or half a minute when quick."""
    scale = QUICK if quick else FULL
    with live_arena(show) as arena:
        results = {str(ms): _measured(arena, scale, ms) for ms in scale.intervals_ms}
    return PartResult(asdict(scale) | {"keys": KEYS}, {"intervals": results})


def _measured(arena: LiveArena, scale: TransactionalScale, interval_ms: int) -> dict[str, Any]:
    with arena.running("penstock_transactional", f"{interval_ms}ms") as (_, load):
        load.warm(scale.warm_s)
        began_us = time.time_ns() // 1000
        load.produce(scale.rate, scale.seconds)
        received = load.end()
    length_us = int(scale.seconds * 1e6)
    counted = measures.between(received, began_us + length_us // 10, began_us + length_us)
    result = asdict(measures.latency(counted)) | {"right": load.right(received)}
    arena.show(
        f"transactional, a checkpoint every {interval_ms} ms: p50 {result['p50_ms']:.0f} ms, "
        f"p99 {result['p99_ms']:.0f} ms, {'correct' if result['right'] else 'WRONG'}"
    )
    return result


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """p99 divided by the time between checkpoints."""
    p99_ms = results["intervals"][str(JUDGED_MS)]["p99_ms"]
    return {"transactional_p99_over_interval": p99_ms / JUDGED_MS}
