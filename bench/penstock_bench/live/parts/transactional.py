"""The part `transactional`: `delivery="transactional"` over Kafka, with a consumer that reads committed rows.

Rows are seen when their epoch is durable, so what is measured is set against the time between checkpoints.
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
"""The time between checkpoints that the goal is for: the default."""


@dataclass(frozen=True)
class TransactionalScale:
    """How much of it to run."""

    intervals_ms: tuple[int, ...] = (1_000, 200)
    """Times between checkpoints."""
    rate: int = 10_000
    warm_s: float = 15.0
    seconds: float = 20.0


FULL, QUICK = TransactionalScale(), TransactionalScale((1_000,), warm_s=6.0, seconds=8.0)


def run(show: Show, quick: bool = False) -> PartResult:
    """Run all; takes a minute and a half, half a minute when quick."""
    scale = QUICK if quick else FULL
    with live_arena(show) as arena:
        found = {str(each): _one(arena, scale, each) for each in scale.intervals_ms}
    return PartResult(asdict(scale) | {"keys": KEYS}, {"intervals": found})


def _one(arena: LiveArena, scale: TransactionalScale, interval_ms: int) -> dict[str, Any]:
    with arena.running("penstock_transactional", f"{interval_ms}ms") as (_, load):
        load.warm(scale.warm_s)
        began_us = time.time_ns() // 1000
        load.produce(scale.rate, scale.seconds)
        received = load.end()
    length_us = int(scale.seconds * 1e6)
    some = measures.between(received, began_us + length_us // 10, began_us + length_us)
    found = asdict(measures.latency(some)) | {"right": load.right(received)}
    arena.show(
        f"transactional, a checkpoint every {interval_ms} ms: p50 {found['p50_ms']:.0f} ms, "
        f"p99 {found['p99_ms']:.0f} ms, {'right' if found['right'] else 'WRONG'}"
    )
    return found


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """p99 over the time between checkpoints."""
    p99_ms = results["intervals"][str(JUDGED_MS)]["p99_ms"]
    return {"transactional_p99_over_interval": p99_ms / JUDGED_MS}
