"""A `StatefulProcessor` of Spark, ported: sensors that have been silent for a minute.

Shows value state, timers and TTL in a `KeyedProcessor`. In Spark this class is

    class Silence(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.last = handle.getValueState("last", "reading double, deadline long", ttlDurationMs=3_600_000)

        def handleInputRows(self, key, rows, timerValues):
            ...
            self.handle.registerTimer(deadline)

and runs with `df.groupBy("sensor").transformWithState(Silence(), ..., timeMode="ProcessingTime")`.
Run it on this machine for 20 seconds: python examples/ported_processor.py
"""

import sys
import tempfile

import penstock as ps

SILENT_MS = 60_000


class Silence(ps.KeyedProcessor):
    """Reports a sensor's last reading when nothing has come from it for a while."""

    output_schema = "sensor long, last double, silent_since long"

    def __init__(self, silent_ms: int = SILENT_MS) -> None:
        self.silent_ms = silent_ms

    def init(self, handle):
        self.handle = handle
        self.last = handle.get_value_state("last", "reading double, deadline long", ttl="1 hour")

    def handle_input_rows(self, key, rows, timers):
        before = self.last.get()
        if before is not None:
            self.handle.delete_timer(before.deadline)
        *_, newest = rows
        deadline = timers.processing_time_ms + self.silent_ms
        self.last.update((newest.reading, deadline))
        self.handle.register_timer(deadline)
        return iter(())

    def handle_expired_timer(self, key, timers, expired):
        last = self.last.get()
        if last is not None:
            yield key[0], last.reading, last.deadline - self.silent_ms
            self.last.clear()


def silent(readings, silent_ms: int = SILENT_MS) -> ps.Flow:
    """Silent sensors. `readings` has the columns sensor and reading."""
    return ps.flow(readings).key_by("sensor").process(Silence(silent_ms))


def main(seconds: float = 20) -> None:
    from pyspark.sql import functions as sf

    spark = ps.session("ported-processor", cores=5)
    # Each sensor sends two readings, three seconds apart, and is silent then.
    number = sf.col("value")
    readings = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 10)
        .load()
        .select(
            (number / 60).cast("long") * 30 + number % 30,
            number % 100 / 10,
        )
        .toDF("sensor", "reading")
    )
    alarms = ps.collect()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = silent(readings, silent_ms=5_000).start(alarms, checkpoint=checkpoint, hosts=2)
        query.await_termination(timeout=seconds)
        query.stop()
    for alarm in alarms.rows():
        print(alarm)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
