"""Exactly-once sinks for micro-batches, and a check whether a session can write to a sink."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.driver.clock import wall_ms
from penstock.errors import PenstockError, SettingError
from penstock.live.sinks.kafka import KafkaSink
from penstock.live.sinks.sink import Delivery, LiveSink, RowIds
from penstock.spark.connector import must_have_connector
from penstock.spark.sinks import KafkaTopic, Sink, Writer, replaces


class TransactionalTopic:
    """A Kafka topic that gets each epoch exactly once, in a transaction that the driver commits.

    If an epoch is run again after its commit, it is not written again. Opening the topic fences off an older
    driver of the same flow.
    """

    takes_once = True

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._delivery: Delivery | None = None

    def live(self) -> LiveSink:
        return self._sink

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        run, rows = int(wall_ms()), df.toArrow().combine_chunks()
        if self._delivery is None:
            self._delivery = self._sink.delivery(0, rows.schema, flow_id)
        try:
            for batch in rows.to_batches():  # one, or none
                self._delivery.deliver(batch, RowIds(0, epoch, 0, run, epoch))
        except PenstockError:
            # The next producer to open it finds out whether it was committed.
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        if self._delivery is not None:
            self._delivery.close()
        self._delivery = None


def transactional(sink: Sink) -> Sink:
    """The sink in a form that takes each epoch exactly once. Raises a `SettingError` if it has none."""
    if isinstance(sink, KafkaTopic):
        return TransactionalTopic(sink.sink)
    if replaces(sink) is not None or getattr(sink, "takes_once", False):
        return sink
    raise SettingError(
        "this sink cannot take rows exactly once in micro-batches",
        hint='use ps.to("kafka", servers=..., topic=...), files or Delta, or delivery="at_once"',
    )


def check_sink(sink: Sink, spark: SparkSession) -> None:
    """Raise a `SettingError` if the session cannot write to a sink in micro-batches."""
    if isinstance(sink, Writer) and sink.format == "kafka":
        must_have_connector(spark)
