"""A producer process that sends rows to a Kafka topic at a rate.

Run it with `python -m penstock_bench.live.produce SERVERS TOPIC ROWS_PER_SECOND ROWS KEYS`. The key and
value of row i are functions of i. Each row also carries the time at which it was sent, so that consumers
can compute its latency. A rate of 0 means as fast as possible.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from penstock_bench.workloads.draws import Draws

_AT_ONCE = 4_096
_TICK_S = 0.002


def produce(servers: str, topic: str, rate: float, rows: int, keys: int) -> dict[str, Any]:
    """Produce all rows; returns the number of rows, the seconds taken, and the longest delay in seconds."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 0.5 if rate else 20,
            "acks": 1,
            "queue.buffering.max.messages": 2_000_000,
            "socket.nagle.disable": True,
        }
    )
    number, began, late_s = 0, time.monotonic(), 0.0
    texts: list[bytes] = []
    while number < rows:
        due = rows if not rate else min(rows, int((time.monotonic() - began) * rate) + 1)
        if due <= number:
            producer.poll(0)
            time.sleep(_TICK_S)
            continue
        if not texts:  # prepared ahead, to save time when rows are due
            texts = _made(number, min(rows, number + _AT_ONCE), keys)
        end = min(due, number + len(texts))
        for text in texts[: end - number]:
            _put(producer, topic, text % (time.time_ns() // 1000))
        del texts[: end - number]
        producer.poll(0)
        number = end
        if rate:
            late_s = max(late_s, time.monotonic() - began - number / rate)
    producer.flush()
    return {"rows": rows, "seconds": time.monotonic() - began, "late_s": late_s}


def _made(start: int, end: int, keys: int) -> list[bytes]:
    """JSON templates of the rows with these numbers, with a placeholder for the time."""
    draws = Draws(1, np.arange(start, end, dtype=np.int64))
    key, value = draws.below(keys, "key").tolist(), draws.below(1000, "value").tolist()
    return [b'{"k":%d,"v":%d,"t":%%d}' % row for row in zip(key, value, strict=True)]


def _put(producer: Any, topic: str, text: bytes) -> None:
    while True:
        try:
            producer.produce(topic, text)
            return
        except BufferError:
            producer.poll(0.05)


if __name__ == "__main__":
    facts = produce(
        sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    )
    print(json.dumps(facts))
