"""The bench's flow on Pathway: `python -m penstock_bench.live.sides.pathway_side SERVERS IN OUT FOLDER`.

Needs Pathway on the Python path. State is written to a folder every second, as Penstock does.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(servers: str, source: str, sink: str, folder: str) -> None:
    """Run the flow until the process ends."""
    import pathway as pw

    class Row(pw.Schema):  # type: ignore[misc]
        k: int
        v: int
        t: int

    reading = {"bootstrap.servers": servers, "group.id": "pathway", "auto.offset.reset": "earliest",
               "fetch.wait.max.ms": "20", "socket.nagle.disable": "true"}  # fmt: skip
    writing = {"bootstrap.servers": servers, "linger.ms": "0.5"}
    rows = pw.io.kafka.read(reading, source, format="json", schema=Row, autocommit_duration_ms=5)
    sums = rows.groupby(rows.k).reduce(
        rows.k, n=pw.reducers.count(), s=pw.reducers.sum(rows.v), t=pw.reducers.max(rows.t)
    )
    pw.io.kafka.write(sums, writing, sink, format="json")
    place = Path(folder, "state")
    backend = pw.persistence.Backend.filesystem(str(place))
    config = pw.persistence.Config(backend, snapshot_interval_ms=1000)
    pw.run(persistence_config=config, monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main(*sys.argv[1:5])
