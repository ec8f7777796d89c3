"""The bench's flow on Flink: `python -m penstock_bench.live.sides.flink_side SERVERS IN OUT FOLDER KIND
JARS`.

KIND is "sql", or "datastream" for a function in Python. Needs an interpreter with PyFlink, and the jar of its
Kafka connector. A checkpoint is written every second, as Penstock does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(servers: str, source: str, sink: str, folder: str, kind: str, jars: str) -> None:
    """Run the flow until the process ends."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    conf = Configuration()
    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.dir": Path(folder, "checkpoints").resolve().as_uri(),
        "execution.buffer-timeout.interval": "1ms",
        "pipeline.object-reuse": "true",
        "pipeline.jars": ";".join(jar.as_uri() for jar in sorted(Path(jars).glob("*.jar"))),
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        # Python gets rows in bundles; by default it waits a second for more.
        "python.fn-execution.bundle.time": "5",
    }
    for name, value in settings.items():
        conf.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    tables = StreamTableEnvironment.create(env)
    kafka = f"'properties.bootstrap.servers' = '{servers}', "
    tables.execute_sql(
        "CREATE TEMPORARY TABLE arriving (k BIGINT, v BIGINT, t BIGINT) WITH ('connector' = 'kafka', "
        f"{kafka} 'topic' = '{source}', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset', "
        "'properties.group.id' = 'flink', 'properties.fetch.max.wait.ms' = '20')"
    )
    columns = "k BIGINT, n BIGINT, s BIGINT, t BIGINT"
    if kind == "sql":
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE sums ({columns}, PRIMARY KEY (k) NOT ENFORCED) WITH ("
            f"'connector' = 'upsert-kafka', {kafka} 'topic' = '{sink}', 'key.format' = 'json', "
            "'value.format' = 'json', 'properties.linger.ms' = '0')"
        )
        sums = tables.sql_query("SELECT k, COUNT(*), SUM(v), MAX(t) FROM arriving GROUP BY k")
    else:
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE sums ({columns}) WITH ('connector' = 'kafka', {kafka} "
            f"'topic' = '{sink}', 'format' = 'json', 'properties.linger.ms' = '0')"
        )
        sums = tables.from_data_stream(_sums(tables.to_data_stream(tables.from_path("arriving"))))
    sums.execute_insert("sums").wait()


def _sums(rows: Any) -> Any:
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    class Sums(KeyedProcessFunction):  # type: ignore[misc]
        def open(self, context: Any) -> None:
            kind = Types.PICKLED_BYTE_ARRAY()
            self.state = context.get_state(ValueStateDescriptor("state", kind))

        def process_element(self, row: Any, context: Any) -> Iterator[Any]:
            n, s = self.state.value() or (0, 0)
            n, s = n + 1, s + row[1]
            self.state.update((n, s))
            yield row[0], n, s, row[2]

    kind = Types.TUPLE([Types.LONG()] * 4)
    return rows.key_by(lambda row: row[0], key_type=Types.LONG()).process(Sums(), output_type=kind)


if __name__ == "__main__":
    main(*sys.argv[1:7])
