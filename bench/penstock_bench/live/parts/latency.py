"""The part `latency`: latency from produce to receipt over a real Kafka broker, of Penstock live and its
peers.

Every side keeps a count and a sum per key, writes an update for each change, and makes its state durable
every second. The sides run in turn on the same broker, with the same producer and consumer. Their final
output is compared with the sums of all rows.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock_bench.live import measures
from penstock_bench.live.arena import (
    KEYS,
    PEERS,
    UP_S,
    LiveArena,
    live_arena,
    peers_path,
    until_quiet,
)
from penstock_bench.live.side import SideProcess, await_that
from penstock_bench.report import Goal, PartResult, Show

GOALS = {
    "p99_vs_native_10k": Goal(at_most=0.04),
    "p99_vs_micro_10k": Goal(at_most=0.05),
    "p99_vs_bytewax_10k": Goal(at_most=1.0),
    "p99_vs_pathway_10k": Goal(at_most=1.0),
    "max_rate_vs_micro": Goal(at_least=0.5),
    "max_rate_generated_vs_micro": Goal(at_least=1.0),
    "reroute_peak_over_steady": Goal(at_most=3),
    "recover_courier_s": Goal(at_most=2),
    "recover_host_s": Goal(at_most=2),
}
SIDES = ("penstock_live", "penstock_micro", "native", *PEERS)
_MS = 1000


@dataclass(frozen=True)
class LiveScale:
    """Size of the benchmark."""

    rates: tuple[int, ...] = (1_000, 10_000, 50_000)
    warm_s: float = 30.0
    """Seconds of load before the measurement, to warm up the JVM."""
    seconds: float = 20.0
    """Seconds at each rate, of which the first tenth does not count."""
    backlog: int = 4_000_000
    """Rows of the backlog that each side processes as fast as it can."""
    change_s: float = 6.0
    """Seconds of load before and after a move or a kill."""
    generated: tuple[int, ...] = (500_000, 1_000_000, 2_000_000, 3_000_000, 3_500_000, 4_000_000)
    """Rates, in rows per second, of rows that couriers generate themselves."""


QUICK = LiveScale((1_000, 10_000), 8.0, 6.0, 1_500_000, 4.0, (500_000, 1_000_000))
FULL = LiveScale()


def run(show: Show, quick: bool = False) -> PartResult:
    """Run all sides in turn, which takes about a quarter of an hour, or four minutes when quick."""
    scale = QUICK if quick else FULL
    results: dict[str, Any] = {"sides": {}, "missing": {}}
    with live_arena(show) as arena:
        compared = Compared(arena, scale)
        for side in SIDES:
            if side in PEERS and not peers_path():
                results["missing"][side] = "not installed: make peers"
                show(f"{side}: not installed (make peers)")
                continue
            results["sides"][side] = compared.side(side)
        results["changes"] = compared.changes()
        results["generated"] = compared.generated()
    return PartResult(asdict(scale) | {"keys": KEYS, "checkpoint_s": 1}, results)


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The metrics that have goals, without those of missing sides."""
    sides, changes = results["sides"], results["changes"]

    def p99(side: str) -> float:
        return float(sides[side]["rates"]["10000"]["p99_ms"])

    p99s = {
        f"p99_vs_{name}_10k": p99("penstock_live") / p99(side)
        for name, side in (
            ("native", "native"),
            ("micro", "penstock_micro"),
            ("bytewax", "bytewax"),
            ("pathway", "pathway"),
        )
        if side in sides
    }
    live, micro = (sides[side]["drained_per_s"] for side in ("penstock_live", "penstock_micro"))
    generated = results["generated"]
    return p99s | {
        "max_rate_vs_micro": live / micro,
        "max_rate_generated_vs_micro": generated["live_per_s"] / generated["micro_per_s"],
        "reroute_peak_over_steady": changes["move"]["peak_ms"] / changes["move"]["steady_ms"],
        "recover_courier_s": changes["kill_courier"]["recover_s"],
        "recover_host_s": changes["kill_host"]["recover_s"],
    }


@dataclass
class Compared:
    """The measurements of each side."""

    arena: LiveArena
    scale: LiveScale

    def side(self, name: str) -> dict[str, Any]:
        """Latency at each rate, and throughput on a backlog."""
        result: dict[str, Any] = {"rates": {}}
        with self.arena.running(name) as (side, load):
            load.warm(self.scale.warm_s)
            for rate in self.scale.rates:
                began_us, before_s = time.time_ns() // 1000, side.cpu_s()
                load.produce(rate, self.scale.seconds)
                cores = (side.cpu_s() - before_s) / self.scale.seconds
                result["rates"][str(rate)] = {"began_us": began_us, "cores": round(cores, 2)}
            received = load.end()
        for rate, facts in result["rates"].items():
            began_us, length_us = facts.pop("began_us"), int(self.scale.seconds * 1e6)
            counted = measures.between(received, began_us + length_us // 10, began_us + length_us)
            facts |= asdict(measures.latency(counted))
            self.arena.show(
                f"{name}: {int(rate):,} rows/s: p50 {facts['p50_ms']:.1f} ms, p99 {facts['p99_ms']:.1f} ms"
            )
        result["right"] = load.right(received)
        result["drained_per_s"] = self._drained(name)
        self.arena.show(f"{name}: backlog drained at {result['drained_per_s']:,.0f} rows/s")
        return result

    def changes(self) -> dict[str, Any]:
        """Latency during a move and after kills, at 10,000 rows/s."""
        results: dict[str, Any] = {}
        scale = self.scale
        with self.arena.running("penstock_live") as (side, load):
            load.warm(scale.warm_s)
            marks = {}
            for change in ("move", "kill_courier", "kill_host"):
                with load.producing(10_000, 2 * scale.change_s + 2):
                    time.sleep(scale.change_s)
                    side.must_run()
                    marks[change] = time.time_ns() // 1000
                    if change == "move":
                        side.tell("move")
                    else:
                        os.kill(_pid(side, change.removeprefix("kill_")), signal.SIGKILL)
                self.arena.show(f"{change}: done")
            received = load.end()
        for change, at_us in marks.items():
            span_us = int(scale.change_s * 1e6)
            bins = int(scale.change_s * 10)
            before = measures.by_bin(received, at_us - span_us, bins)
            after = measures.by_bin(received, at_us, bins)
            worst = measures.latency(measures.between(received, at_us - 100_000, at_us + span_us))
            results[change] = {
                "steady_ms": float(np.median([p99 for p99 in before if p99 is not None])),
                "peak_ms": max((p99 for p99 in after if p99 is not None), default=float("nan")),
                "recover_s": worst.max_ms / _MS,
                "before_ms": before,
                "after_ms": after,
            }
        results["right"] = load.right(received)
        return results

    def generated(self) -> dict[str, Any]:
        """Throughput on rows that couriers generate: in live mode with a p99 below 50 ms, and in
        micro-batches at full speed."""
        result: dict[str, Any] = {}
        for mode in ("generated_live", "generated_micro"):
            words = [mode, ",".join(map(str, self.scale.generated)), str(self.scale.seconds)]
            folder = self.arena.place / mode
            side = SideProcess("penstock_bench.live.sides.generated", [*words, str(folder)], folder)
            try:
                limit_s = UP_S + 4 * self.scale.seconds * len(self.scale.generated)
                await_that("it was done", lambda s=side: "done" in s.status, limit_s, side)  # type: ignore[misc]
                result |= side.status["done"]
            finally:
                side.end()
        return result

    def _drained(self, name: str) -> float:
        rows = self.scale.backlog
        with ExitStack() as stack:
            load = stack.enter_context(self.arena.load(f"{name}-backlog"))
            load.produce_all(rows)
            side = stack.enter_context(self.arena.side(name, load))
            await_that("the first output", lambda: load.count() > 0, UP_S, side)
            until_quiet(load)
            received = load.end()
        return measures.drained_per_s(received, rows)


def _pid(side: SideProcess, role: str) -> int:
    """Process id of a side's first courier or host."""
    pids: dict[str, int] = side.status["couriers" if role == "courier" else "hosts"]
    return next(iter(pids.values()))
