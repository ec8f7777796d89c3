"""A Kafka topic as a sink.

Rows are sent at once, or with `delivery="transactional"` in one transaction per courier and checkpoint.
Each message has the headers `penstock-id` (the id of its row) and `penstock-run`. With them, a consumer of
rows that were sent at once can drop duplicates after a failure (see `RowIds`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeliveryError, FlowError, SettingError, StoreError
from penstock.extensions import imported
from penstock.live.sinks.sink import NEVER, Delivery, LiveSink, LiveWriter, RowIds
from penstock.live.sources.formats import ArrowStream, Avro, Format, Json, Raw
from penstock.live.sources.kafka import METADATA, ToldOnce
from penstock.wire.flight import in_own_thread

_log = logging.getLogger("penstock.sinks")

ID = "penstock-id"
"""Message header with the id of a row: courier-epoch-number."""
RUN = "penstock-run"
"""Message header with the run of a row: its start in milliseconds since 1970, and its first epoch."""
_WRITES = {
    # With 0 each row would be its own request: at 10,000 rows per second p50 was 282 ms.
    "linger.ms": 0.5,
    "acks": "all",
    "enable.idempotence": True,
    "socket.nagle.disable": True,
    "queue.buffering.max.messages": 1_000_000,
    # A callback for each delivered row would cost as much as sending it.
    "delivery.report.only.error": True,
    "log_level": 2,  # we log once that brokers cannot be reached, not at each attempt
}
_WAIT_S = 60.0
"""Timeout for Kafka to accept the rows of an epoch, in seconds."""
_LOOK_EACH_S = 1.0
"""Seconds between two checks of a call that does not return."""
_LOOKS = 5
"""Number of checks in a row in which brokers answer and the call still waits: then it is abandoned."""
_LOOK_S = 0.001
"""Seconds between two checks whether the brokers have received what was sent."""
_TOGETHER_S = 0.003
"""Seconds that rows wait for other rows of their chunk."""
_MOST = 64
"""Most batches that wait in the writer. More go to librdkafka, which blocks when its queue is full."""
_HEADERS = METADATA["headers"]
MESSAGES = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)])
"""Schema of messages as rows, for Spark's connector."""
_NO_KEY = "a message in arrow format holds many rows, so it cannot have a key"


@dataclass(frozen=True)
class KafkaSink(LiveSink):
    """A Kafka topic. The column `key` becomes the messages' key, and stays in values that are not raw."""

    servers: str
    topic: str
    format: str = "json"
    key: str | None = None
    avro: str | None = None
    """Avro schema of the values, as JSON."""
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Options of librdkafka."""

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return KafkaWriter(self, schema)

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        return KafkaDelivery(self, schema, f"penstock-{flow_id}-{courier}")

    def check(self, schema: pa.Schema) -> None:
        self.encoder(schema)

    def encoder(self, schema: pa.Schema) -> Format:
        """The format that encodes rows of this schema. Raises an error if they cannot be encoded."""
        if self.key is not None and self.key not in schema.names:
            raise FlowError(
                f"the message key {self.key!r} is not a column of the output",
                hint=f"use one of {', '.join(schema.names)}",
            )
        if self.format == "raw":
            place = schema.get_field_index("value")
            kind = schema.field(place).type if place >= 0 else None
            if kind is None or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise FlowError(
                    "raw messages need a column `value` of type string or binary",
                    hint="add one, or let Penstock encode the rows: value_format='json'",
                )
            return Raw()
        if self.format == "arrow" and self.key is not None:
            raise FlowError(_NO_KEY, hint="use json or avro, or leave the key out")
        if self.format == "avro":
            if self.avro is None:
                raise FlowError("the format avro needs a schema", hint="pass it as avro_schema=...")
            return Avro(self.avro)
        if self.format not in ("json", "arrow"):
            raise SettingError(
                f"unknown format {self.format!r}", hint="use json, avro, arrow or raw"
            )
        return Json(schema) if self.format == "json" else ArrowStream(schema)

    def produce(self, producer: Any, format: Format, batch: pa.RecordBatch, ids: RowIds) -> None:
        """Pass the messages of a batch to librdkafka. Blocks while its queue is full."""
        values, keys, produce = format.encode(batch), self.keys(batch), producer.produce
        run = (RUN, ids.run_text.encode())
        for row, value in enumerate(values):
            # As bytes: confluent-kafka takes 1.5 µs for such a message, 2.4 µs with strings in its headers.
            headers = [(ID, b"%d-%d-%d" % (ids.courier, ids.epoch, ids.first + row)), run]
            while True:
                try:
                    produce(self.topic, value, keys[row], headers=headers)
                    break
                except BufferError:  # the brokers are slow: wait for them
                    producer.poll(0.01)

    def messages(self, format: Format, batch: pa.RecordBatch, ids: RowIds) -> pa.RecordBatch:
        """The messages of a batch as rows, for writing them without librdkafka."""
        values = format.encode(batch)
        count, run = len(values), ids.run_text.encode()
        keys = [key.encode() if isinstance(key, str) else key for key in self.keys(batch)[:count]]
        texts = [text for row in range(count) for text in (ids.text(row).encode(), run)]
        headers = pa.StructArray.from_arrays(
            [pa.array([ID, RUN] * count, pa.string()), pa.array(texts, pa.binary())],
            fields=list(_HEADERS.value_type),
        )
        places = pa.array(range(0, 2 * count + 1, 2), pa.int32())
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        columns.append(pa.ListArray.from_arrays(places, headers, type=_HEADERS))
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)

    def keys(self, batch: pa.RecordBatch) -> list[Any]:
        """The keys of a batch's messages: strings and bytes as they are, other types as strings."""
        if self.key is None:
            return [None] * batch.num_rows
        column = batch.column(self.key)
        kind = column.type
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            column = pc.cast(column, pa.string())
        return list(column.to_pylist())


class KafkaWriter(LiveWriter):
    """Produces messages in order. `flush` waits until the brokers have them."""

    def __init__(self, sink: KafkaSink, schema: pa.Schema) -> None:
        confluent = imported("confluent_kafka", "kafka", "writing to Kafka")
        self._sink, self._format = sink, sink.encoder(schema)
        self._failed: Any = None
        self._lost = 0
        self._waiting: list[tuple[pa.RecordBatch, RowIds]] = []
        self._since = 0.0
        self._away, self._wrote = ToldOnce(_log), False
        settings = {"bootstrap.servers": sink.servers, "on_delivery": self._note} | _WRITES
        settings["error_cb"] = lambda error: self._away.tell(f"Kafka: {error}; retrying")
        self._producer = confluent.Producer(settings | dict(sink.options), logger=_log)

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((batch, ids))

    def work(self, more: bool = False) -> float:
        self._check()
        if not self._waiting:
            return NEVER
        # With idempotence, librdkafka sends a partition nothing more while messages are in flight. If it gets
        # more, it spins meanwhile and uses a core: at 10,000 rows/s p99 was 40 to 60 ms. For the same reason,
        # the output of all hosts for a chunk should go together.
        self._producer.poll(0)
        now = time.monotonic()
        waits = len(self._producer) or (more and now < self._since + _TOGETHER_S)
        if waits and len(self._waiting) < _MOST:
            return now + _LOOK_S
        self._produce()
        return NEVER

    def _produce(self) -> None:
        """Pass all waiting batches to librdkafka."""
        if not self._waiting:
            return
        for batch, ids in self._waiting:
            self._sink.produce(self._producer, self._format, batch, ids)
        self._waiting.clear()
        self._producer.poll(0)
        self._wrote = True

    def flush(self, epoch: int) -> None:
        self._produce()
        left = self._producer.flush(_WAIT_S)
        self._check()
        if self._wrote and not left:
            self._away.over()
        self._wrote = False
        if left:
            raise StoreError(
                f"Kafka has not accepted {left} rows of epoch {epoch} within {_WAIT_S:.0f} s",
                hint="check the brokers; the flow resumes from its checkpoint",
            )

    def _note(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed, self._lost = self._failed or error, self._lost + 1

    def _check(self) -> None:
        if self._failed is not None:
            raise StoreError(
                f"Kafka did not accept {self._lost} rows for topic {self._sink.topic!r}: {self._failed}",
                hint="check the brokers and the topic; the flow resumes from its checkpoint",
            )

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1.0)


class KafkaDelivery(Delivery):
    """Delivers epochs in transactions. Each transaction also commits the number of the next epoch, as the
    offset of a consumer group of its own."""

    def __init__(self, sink: KafkaSink, schema: pa.Schema, name: str) -> None:
        self._sink, self._format, self._name = sink, sink.encoder(schema), name
        self._producer: Any = None
        self._marker: Any = None
        self._next = 0
        """First epoch that is not delivered yet."""

    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        confluent = imported("confluent_kafka", "kafka", "writing to Kafka")
        try:
            if self._producer is None:
                self._open(confluent)
            if ids.epoch >= self._next:
                self._send(confluent, rows, ids)
                self._next = ids.epoch + 1
        except confluent.KafkaException as failed:
            # The next `_open` aborts the transaction, or learns that it was committed.
            self.close()
            raise DeliveryError(
                f"Kafka did not commit epoch {ids.epoch} to topic {self._sink.topic!r}: {failed}",
                hint="check the brokers and the topic; the flow resumes from its checkpoint",
            ) from failed

    def _open(self, confluent: Any) -> None:
        """Fence off earlier producers of this transactional id, and read how far they have delivered."""
        servers, options = {"bootstrap.servers": self._sink.servers}, dict(self._sink.options)
        settings = servers | _WRITES | {"transactional.id": self._name} | options
        producer = confluent.Producer(settings, logger=_log)
        producer.init_transactions(_WAIT_S)
        reads = {"group.id": self._name, "isolation.level": "read_committed", "log_level": 2}
        self._marker = confluent.Consumer(servers | options | reads, logger=_log)
        (place,) = self._marker.committed([confluent.TopicPartition(self._sink.topic, 0)], _WAIT_S)
        if place.error is not None:
            raise confluent.KafkaException(place.error)
        self._next = max(place.offset, 0)
        self._producer = producer

    def _send(self, confluent: Any, rows: pa.RecordBatch, ids: RowIds) -> None:
        producer = self._producer
        producer.begin_transaction()
        self._sink.produce(producer, self._format, rows, ids)
        place = confluent.TopicPartition(self._sink.topic, 0, ids.epoch + 1)
        group = self._marker.consumer_group_metadata()

        def send_offsets() -> None:
            producer.send_offsets_to_transaction([place], group, _WAIT_S)

        if not _comes_back(send_offsets, producer, confluent.KafkaException):
            self._producer = None  # it cannot be closed while a call is in progress
            raise confluent.KafkaException(confluent.KafkaError(confluent.KafkaError._TIMED_OUT))
        producer.commit_transaction(_WAIT_S)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
        if self._marker is not None:
            self._marker.close()
        self._producer = self._marker = None


def _comes_back(call: Callable[[], object], producer: Any, refused: type[Exception]) -> bool:
    """Run a producer call that may never return after an outage of brokers (librdkafka's issues 5456 and
    5511: it ignores the timeout). Returns whether it returned; raises its error.

    The call is abandoned, in its own thread, when the brokers have been back for a while, or do not come back
    within the timeout.
    """
    under_way = in_own_thread(call, "kafka-transaction")
    until, answered = time.monotonic() + _WAIT_S, 0
    wait([under_way], _LOOK_EACH_S)
    while not under_way.done() and answered < _LOOKS and time.monotonic() < until:
        try:
            producer.list_topics(timeout=1.0)  # the call itself may still wait for a connection
            answered += 1
        except refused:
            answered = 0
        wait([under_way], _LOOK_EACH_S)
    if under_way.done():
        under_way.result()
    return under_way.done()
