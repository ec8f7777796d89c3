"""A consumer process that records a side's output and its latency.

Run it with `python -m penstock_bench.live.consume SERVERS TOPIC FILE`. On SIGTERM it writes an array with
one row per message: when it was received, when the newest row behind it was produced (microseconds since
1970), key, count and sum.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import msgspec
import numpy as np


class _Update(msgspec.Struct):
    k: int
    n: int
    s: int
    t: int
    diff: int = 1
    """1 for a new value; Pathway also sends the replaced value, with -1."""


def consume(servers: str, topic: str, file: str) -> None:
    """Receive all messages of the topic until SIGTERM, then write them to the file."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: _note(over, number, frame))
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"meter-{time.time_ns()}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            "socket.nagle.disable": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    decoder, rows = msgspec.json.Decoder(_Update), list[tuple[int, int, int, int, int]]()
    print("ready", flush=True)
    while not over:
        first = consumer.poll(0.1)
        if first is None:
            continue
        messages = [first, *consumer.consume(10_000, 0)]
        now = time.time_ns() // 1000
        for message in messages:
            if message.error() is None:
                update = decoder.decode(message.value() or b"")
                if update.diff > 0:
                    rows.append((now, update.t, update.k, update.n, update.s))
    np.save(file, np.array(rows, np.int64).reshape(-1, 5))
    consumer.close()


def _note(over: list[int], number: int, frame: FrameType | None) -> None:
    over.append(number)


if __name__ == "__main__":
    consume(*sys.argv[1:4])
