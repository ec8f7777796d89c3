"""`penstock bench live`: produce to receipt over one real Kafka broker, Penstock live beside its peers.

Every side keeps a count and a sum of each key, writes an update for what changed, and keeps its state durable
every second. The sides take turns on the same broker, with the same producer and consumer; what they put
out at the end is compared with the sums of all rows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock_bench.broker import Broker, running_broker
from penstock_bench.live import measures
from penstock_bench.live.measures import Received
from penstock_bench.live.side import SideProcess, await_that
from penstock_bench.report import Goal, Report, Show
from penstock_bench.workloads.draws import Draws

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
KEYS = 10_000
SIDES = {
    "penstock_live": ("penstock_bench.live.sides.spark_side", "live"),
    "penstock_micro": ("penstock_bench.live.sides.spark_side", "micro"),
    "native": ("penstock_bench.live.sides.spark_side", "native"),
    "bytewax": ("penstock_bench.live.sides.bytewax_side", ""),
    "pathway": ("penstock_bench.live.sides.pathway_side", ""),
}
PEERS = ("bytewax", "pathway")
"""Sides that need packages of their own; see `peers_path`."""
_UP_S, _QUIET_S = 180.0, 60.0
_WARM_RATE = 5_000
_MS = 1000


@dataclass(frozen=True)
class LiveScale:
    """How much of it to run."""

    rates: tuple[int, ...] = (1_000, 10_000, 50_000)
    warm_s: float = 30.0
    """Seconds of load before anything is measured: a JVM needs them."""
    seconds: float = 20.0
    """Seconds at each rate, of which the first tenth does not count."""
    backlog: int = 4_000_000
    """Rows that each side works off at its own pace."""
    change_s: float = 6.0
    """Seconds of load before and after a move or a kill."""
    generated: tuple[int, ...] = (500_000, 1_000_000, 2_000_000, 3_000_000, 3_500_000, 4_000_000)
    """Rates of rows that couriers make themselves."""


QUICK = LiveScale((1_000, 10_000), 8.0, 6.0, 1_500_000, 4.0, (500_000, 1_000_000))
FULL = LiveScale()


def run(show: Show, quick: bool = False) -> Report:
    """Run all sides, one after the other; takes about a quarter of an hour, four minutes when quick."""
    scale = QUICK if quick else FULL
    results: dict[str, Any] = {"sides": {}, "missing": {}}
    with tempfile.TemporaryDirectory(prefix="penstock-live-", ignore_cleanup_errors=True) as place:
        show("starting Kafka")
        with running_broker() as kafka:
            arena = LiveArena(kafka, Path(place), scale, show)
            for side in SIDES:
                if side in PEERS and not peers_path():
                    results["missing"][side] = "not installed: make peers"
                    show(f"{side}: not installed (make peers)")
                    continue
                results["sides"][side] = arena.side(side)
            results["changes"] = arena.changes()
        results["generated"] = arena.generated()
    settings = asdict(scale) | {"keys": KEYS, "checkpoint_s": 1}
    return Report("live", settings, results, ratios(results))


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The figures that goals are set for; those of sides that are missing are left out."""
    sides, changes = results["sides"], results["changes"]

    def p99(side: str) -> float:
        return float(sides[side]["rates"]["10000"]["p99_ms"])

    found = {
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
    return found | {
        "max_rate_vs_micro": live / micro,
        "max_rate_generated_vs_micro": generated["live_per_s"] / generated["micro_per_s"],
        "reroute_peak_over_steady": changes["move"]["peak_ms"] / changes["move"]["steady_ms"],
        "recover_courier_s": changes["kill_courier"]["recover_s"],
        "recover_host_s": changes["kill_host"]["recover_s"],
    }


def peers_path() -> str:
    """Where packages of peers are, apart from ours, which want other versions of the same libraries."""
    place = Path(os.environ.get("PENSTOCK_PEERS", Path(sys.prefix, "peers")))
    return str(place) if place.is_dir() else ""


@dataclass
class LiveArena:
    """One broker, and what is done to each side on it."""

    kafka: Broker
    place: Path
    scale: LiveScale
    show: Show
    _topics: int = field(default=0)

    def side(self, name: str) -> dict[str, Any]:
        """Latency at each rate, and how fast a backlog goes."""
        told: dict[str, Any] = {"rates": {}}
        with self._running(name) as (side, load):
            load.warm(self.scale.warm_s)
            for rate in self.scale.rates:
                began_us, before_s = time.time_ns() // 1000, side.cpu_s()
                load.produce(rate, self.scale.seconds)
                cores = (side.cpu_s() - before_s) / self.scale.seconds
                told["rates"][str(rate)] = {"began_us": began_us, "cores": round(cores, 2)}
            received = load.end()
        for rate, facts in told["rates"].items():
            began_us, length_us = facts.pop("began_us"), int(self.scale.seconds * 1e6)
            some = measures.between(received, began_us + length_us // 10, began_us + length_us)
            facts |= asdict(measures.latency(some))
            self.show(
                f"{name}: {int(rate):,} rows/s: p50 {facts['p50_ms']:.1f} ms, p99 {facts['p99_ms']:.1f} ms"
            )
        told["right"] = load.right(received)
        told["drained_per_s"] = self._drained(name)
        self.show(f"{name}: a backlog goes at {told['drained_per_s']:,.0f} rows/s")
        return told

    def changes(self) -> dict[str, Any]:
        """What a move, and kills, cost at 10,000 rows/s."""
        found: dict[str, Any] = {}
        scale = self.scale
        with self._running("penstock_live") as (side, load):
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
                self.show(f"{change}: done")
            received = load.end()
        for change, at_us in marks.items():
            span_us = int(scale.change_s * 1e6)
            bins = int(scale.change_s * 10)
            before = measures.by_bin(received, at_us - span_us, bins)
            after = measures.by_bin(received, at_us, bins)
            worst = measures.latency(measures.between(received, at_us - 100_000, at_us + span_us))
            found[change] = {
                "steady_ms": float(np.median([p99 for p99 in before if p99 is not None])),
                "peak_ms": max((p99 for p99 in after if p99 is not None), default=float("nan")),
                "recover_s": worst.max_ms / _MS,
                "before_ms": before,
                "after_ms": after,
            }
        found["right"] = load.right(received)
        return found

    def generated(self) -> dict[str, Any]:
        """The highest rate of rows made by couriers that live holds with a p99 below 50 ms, and what
        micro-batches take as fast as they go."""
        told: dict[str, Any] = {}
        for mode in ("generated_live", "generated_micro"):
            words = [mode, ",".join(map(str, self.scale.generated)), str(self.scale.seconds)]
            folder = self.place / mode
            side = SideProcess("penstock_bench.live.sides.generated", [*words, str(folder)], folder)
            try:
                limit_s = _UP_S + 4 * self.scale.seconds * len(self.scale.generated)
                await_that("rows were made", lambda s=side: "done" in s.status, limit_s, side)  # type: ignore[misc]
                told |= side.status["done"]
            finally:
                side.end()
        return told

    def _drained(self, name: str) -> float:
        rows = self.scale.backlog
        with ExitStack() as stack:
            load = stack.enter_context(self._load(f"{name}-backlog"))
            load.produce_all(rows)
            side = stack.enter_context(self._side(name, load))
            await_that("the backlog began to go", lambda: load.count() > 0, _UP_S, side)
            _until_quiet(load)
            received = load.end()
        return measures.drained_per_s(received, rows)

    @contextmanager
    def _running(self, name: str) -> Iterator[tuple[SideProcess, SideLoad]]:
        with self._load(name) as load, self._side(name, load) as side:
            load.produce(100, 0.1)
            await_that(f"{name} was up", lambda: load.count() > 0, _UP_S, side)
            yield side, load

    @contextmanager
    def _side(self, name: str, load: SideLoad) -> Iterator[SideProcess]:
        module, kind = SIDES[name]
        folder = self.place / f"{load.source}-side"
        words = [self.kafka.servers, load.source, load.sink, str(folder), *([kind] if kind else [])]
        path = (peers_path(),) if name in PEERS else ()
        side = SideProcess(module, words, folder, path)
        try:
            yield side
        finally:
            side.end()

    @contextmanager
    def _load(self, name: str) -> Iterator[SideLoad]:
        self._topics += 1
        source, sink = f"in-{self._topics}-{name}", f"out-{self._topics}-{name}"
        for topic in (source, sink):
            self.kafka.create(topic, 1)
        load = SideLoad(self.kafka.servers, source, sink, self.place / f"{source}.npy")
        try:
            yield load
        finally:
            load.close()


class SideLoad:
    """The producer and the consumer of one side's run."""

    def __init__(self, servers: str, source: str, sink: str, file: Path) -> None:
        self._servers, self.source, self.sink, self._file = servers, source, sink, file
        self._rows: list[int] = []
        words = ["penstock_bench.live.consume", servers, sink, str(file)]
        self._consumer = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True
        )
        assert self._consumer.stdout is not None
        self._consumer.stdout.readline()

    def produce(self, rate: float, seconds: float) -> None:
        """Produce at a rate, for so long."""
        with self.producing(rate, seconds):
            pass

    def produce_all(self, rows: int) -> None:
        """Produce so many rows as fast as it goes."""
        _must(self._producer(0, rows))

    @contextmanager
    def producing(self, rate: float, seconds: float) -> Iterator[None]:
        """Produce at a rate, for so long, while something else is done."""
        producer = self._producer(rate, int(rate * seconds) or 1)
        try:
            yield
        except BaseException:
            producer.kill()
            raise
        _must(producer)

    def warm(self, seconds: float) -> None:
        self.produce(_WARM_RATE, seconds)

    def count(self) -> int:
        """Messages in the output topic so far."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "count"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.sink, 0), 5)[1])
        finally:
            consumer.close()

    def end(self) -> Received:
        """Wait for what is still on its way, and give all that was received."""
        _until_quiet(self)
        self._consumer.terminate()
        self._consumer.wait(30)
        received: Received = np.load(self._file)
        return received

    def right(self, received: Received) -> bool:
        """Whether the last count and sum of every key are those of the rows that were produced."""
        n, s = np.zeros(KEYS, np.int64), np.zeros(KEYS, np.int64)
        for rows in self._rows:
            draws = Draws(1, np.arange(rows, dtype=np.int64))
            key = draws.below(KEYS, "key")
            np.add.at(n, key, 1)
            np.add.at(s, key, draws.below(1000, "value"))
        wanted = {int(k): (int(n[k]), int(s[k])) for k in np.flatnonzero(n)}
        return measures.final(received) == wanted

    def close(self) -> None:
        if self._consumer.poll() is None:
            self._consumer.kill()
            self._consumer.wait()
        assert self._consumer.stdout is not None
        self._consumer.stdout.close()

    def _producer(self, rate: float, rows: int) -> subprocess.Popen[str]:
        self._rows.append(rows)
        words = ["penstock_bench.live.produce", self._servers, self.source]
        words += [str(rate), str(rows), str(KEYS)]
        return subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)


def _must(producer: subprocess.Popen[str]) -> dict[str, Any]:
    told, _ = producer.communicate()
    if producer.returncode:
        raise PenstockError("the producer of the bench failed")
    facts: dict[str, Any] = json.loads(told.splitlines()[-1])
    return facts


def _until_quiet(load: SideLoad) -> None:
    """Wait until no more messages come."""
    deadline, count, since = time.monotonic() + _QUIET_S, -1, time.monotonic()
    while time.monotonic() < deadline:
        now = load.count()
        if now != count:
            count, since, deadline = now, time.monotonic(), time.monotonic() + _QUIET_S
        elif time.monotonic() - since > 3:
            return
        time.sleep(0.25)


def _pid(side: SideProcess, what: str) -> int:
    """The process of the first courier or host of a side."""
    found: dict[str, int] = side.status["couriers" if what == "courier" else "hosts"]
    return next(iter(found.values()))
