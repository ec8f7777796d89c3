"""The bench's flow on Bytewax: `python -m penstock_bench.live.sides.bytewax_side SERVERS IN OUT FOLDER`.

Needs Bytewax on the Python path. State is written to a recovery store every second, as Penstock does.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec


def main(servers: str, source: str, sink: str, folder: str) -> None:
    """Run the flow until the process ends."""
    import bytewax.operators as op
    from bytewax.connectors.kafka import (
        KafkaSinkMessage,
        KafkaSourceMessage,
    )
    from bytewax.connectors.kafka import operators as kop
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import cluster_main

    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode

    def keyed(message: KafkaSourceMessage) -> tuple[str, dict[str, int]]:
        row = decode(message.value)
        return str(row["k"]), row

    def update(state: tuple[int, int] | None, row: dict[str, int]) -> tuple[Any, Any]:
        n, s = state or (0, 0)
        now = (n + 1, s + row["v"])
        return now, {"k": row["k"], "n": now[0], "s": now[1], "t": row["t"]}

    def message(pair: tuple[str, dict[str, int]]) -> KafkaSinkMessage:
        return KafkaSinkMessage(None, encode(pair[1]))

    flow = Dataflow("sums")
    fast = {"fetch.wait.max.ms": "20", "socket.nagle.disable": "true"}
    rows = kop.input("in", flow, brokers=[servers], topics=[source], add_config=fast)
    sums = op.stateful_map("sum", op.map("key", rows.oks, keyed), update)
    out = op.map("message", sums, message)
    kop.output("out", out, brokers=[servers], topic=sink, add_config={"linger.ms": "0.5"})
    place = Path(folder, "recovery")
    place.mkdir(parents=True, exist_ok=True)
    init_db_dir(place, 1)
    cluster_main(
        flow,
        [],
        0,
        epoch_interval=timedelta(seconds=1),
        recovery_config=RecoveryConfig(str(place)),
    )


if __name__ == "__main__":
    main(*sys.argv[1:5])
