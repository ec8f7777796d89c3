"""A Kafka broker on which sides run in turn, each with its own producer and consumer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock_bench.broker import Broker, running_broker
from penstock_bench.live import measures
from penstock_bench.live.measures import Received
from penstock_bench.live.side import SideProcess, await_that
from penstock_bench.report import Show
from penstock_bench.workloads.draws import Draws

KEYS = 10_000
SIDES = {
    "penstock_live": ("penstock_bench.live.sides.spark_side", "live"),
    "penstock_transactional": ("penstock_bench.live.sides.spark_side", "transactional"),
    "penstock_live_python": ("penstock_bench.live.sides.spark_side", "live_python"),
    "penstock_micro": ("penstock_bench.live.sides.spark_side", "micro"),
    "native": ("penstock_bench.live.sides.spark_side", "native"),
    "bytewax": ("penstock_bench.live.sides.bytewax_side", ""),
    "pathway": ("penstock_bench.live.sides.pathway_side", ""),
    "flink_sql": ("penstock_bench.live.sides.flink_side", "sql"),
    "flink_datastream": ("penstock_bench.live.sides.flink_side", "datastream"),
}
PEERS = ("bytewax", "pathway")
"""Sides that need packages of their own; see `peers_path`."""
FLINK = ("flink_sql", "flink_datastream")
"""Sides that need an interpreter of their own; see `flink_python`."""
UP_S, _QUIET_S = 180.0, 60.0
"""Seconds that a side may take to start, and seconds after which waiting for more messages ends."""
_WARM_RATE = 5_000


def peers_path() -> str:
    """Folder of the peers' packages, separate from ours because they need other versions of the same
    libraries."""
    place = Path(os.environ.get("PENSTOCK_PEERS", Path(sys.prefix, "peers")))
    return str(place) if place.is_dir() else ""


def flink_python() -> Path:
    """The interpreter of the environment in which Flink is installed; it may not exist."""
    place = os.environ.get("PENSTOCK_PEERS_FLINK", str(Path(sys.prefix, "peers-flink")))
    return Path(place, "bin", "python")


def bench_path() -> str:
    """Folder of this package, for interpreters that do not have it installed."""
    return str(Path(__file__).parents[2])


@contextmanager
def live_arena(show: Show) -> Iterator[LiveArena]:
    """An arena whose broker ends with the block."""
    with tempfile.TemporaryDirectory(prefix="penstock-live-", ignore_cleanup_errors=True) as place:
        show("starting Kafka")
        with running_broker() as kafka:
            yield LiveArena(kafka, Path(place), show)


@dataclass
class LiveArena:
    """A broker, and a folder for the files of the sides."""

    kafka: Broker
    place: Path
    show: Show
    _topics: int = field(default=0)

    @contextmanager
    def running(self, name: str, *words: str) -> Iterator[tuple[SideProcess, SideLoad]]:
        """A side that is up, started with these extra arguments, and its load."""
        with self.load(name) as load, self.side(name, load, *words) as side:
            load.produce(100, 0.1)
            await_that(f"{name} was up", lambda: load.count() > 0, UP_S, side)
            yield side, load

    @contextmanager
    def side(self, name: str, load: SideLoad, *words: str) -> Iterator[SideProcess]:
        """A side on the topics of a load."""
        module, kind = SIDES[name]
        folder = self.place / f"{load.source}-side"
        topics = [self.kafka.servers, load.source, load.sink]
        words = (*topics, str(folder), *([kind] if kind else []), *words)
        if name in FLINK:
            python = str(flink_python())
            side = SideProcess(module, list(words), folder, (bench_path(),), python)
        else:
            path = (peers_path(),) if name in PEERS else ()
            side = SideProcess(module, list(words), folder, path)
        try:
            yield side
        finally:
            side.end()

    @contextmanager
    def load(self, name: str) -> Iterator[SideLoad]:
        """A load with new topics: a producer for one, and a consumer of the other."""
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
        """Produce rows at a rate for some seconds."""
        with self.producing(rate, seconds):
            pass

    def produce_all(self, rows: int) -> None:
        """Produce rows as fast as possible."""
        _must(self._producer(0, rows))

    @contextmanager
    def producing(self, rate: float, seconds: float) -> Iterator[None]:
        """Produce rows at a rate for some seconds, while the block runs."""
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
        """Number of messages in the output topic so far."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "count"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.sink, 0), 5)[1])
        finally:
            consumer.close()

    def end(self) -> Received:
        """Wait until no more messages arrive, and return all that were received."""
        until_quiet(self)
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
    output, _ = producer.communicate()
    if producer.returncode:
        raise PenstockError("the producer of the bench failed")
    facts: dict[str, Any] = json.loads(output.splitlines()[-1])
    return facts


def until_quiet(load: SideLoad) -> None:
    """Wait until no more messages arrive."""
    deadline, count, since = time.monotonic() + _QUIET_S, -1, time.monotonic()
    while time.monotonic() < deadline:
        now = load.count()
        if now != count:
            count, since, deadline = now, time.monotonic(), time.monotonic() + _QUIET_S
        elif time.monotonic() - since > 3:
            return
        time.sleep(0.25)
