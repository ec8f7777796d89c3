"""Kafka topics, read by confluent-kafka in live couriers, by Spark's connector in micro-batches.

Partitions are named "topic/0"; a position is the offset of the next message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from penstock.errors import FlowError, InputError, SettingError
from penstock.extensions import imported
from penstock.live.sources.formats import Format, FormatName, Values, format_of
from penstock.live.sources.source import LiveReader, LiveSource, Polled
from penstock.model import DeadLetter
from penstock.plan.steps import SourceDecoder

_log = logging.getLogger("penstock.sources")

_WAIT_S = 20.0
"""Timeout for requests about topics and offsets, in seconds."""
_READS = {
    "enable.auto.commit": False,
    "enable.partition.eof": False,
    # An offset that is gone is an error: else rows would be missing without notice.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 20,
    # With this many unpolled messages, librdkafka stops fetching for this many milliseconds. With its
    # default of a second, a backlog was read at 120,000 rows per second instead of 370,000.
    "queued.min.messages": 200_000,
    "fetch.queue.backoff.ms": 5,
    "socket.nagle.disable": True,
    "log_level": 2,  # we log once that brokers cannot be reached, not at each attempt
    "group.id": "penstock",  # librdkafka requires one; no group is joined, no offset is committed
}
_LIMITS = ("maxoffsetspertrigger", "maxtriggerdelay", "minoffsetspertrigger")
"""Options of Spark's connector that limit the rows of an epoch, in lower case."""
FIRST, NEXT = -2, -1
"""Offsets in `starting` that mean earliest and latest, as in Spark's connector."""
METADATA: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
"""Fields of a message, with the names and types of Spark's connector."""

Starting = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class KafkaSource(LiveSource):
    """Kafka topics as a source. Made by `kafka`."""

    servers: str
    topics: tuple[str, ...]
    format: Format
    metadata: tuple[tuple[str, str], ...] = ()
    """(field of a message, column for it)."""
    starting: str | tuple[tuple[str, int, int], ...] = "earliest"
    """Start of a new flow: "earliest", "latest", or (topic, partition, offset) for some partitions; the
    others start at the earliest."""
    # Options may hold passwords, so no message and no log shows them.
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    spark_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    epoch_rows: int | None = None
    """Most rows of an epoch in micro-batches; 0 for no limit; None to derive it from the SLA."""

    @property
    def schema(self) -> pa.Schema:
        meta = [pa.field(column, METADATA[attribute]) for attribute, column in self.metadata]
        return pa.schema([*self.format.schema, *meta])

    @property
    def arrival(self) -> str | None:
        return dict(self.metadata).get("timestamp")

    @property
    def bounded_by_sla(self) -> bool:
        """Whether the SLA decides how many rows an epoch takes, since no limit is set."""
        return self.epoch_rows is None and not any(
            name.lower() in _LIMITS for name, _ in self.spark_options
        )

    @property
    def decoder(self) -> SourceDecoder:
        return KafkaDecoder(self)

    def partitions(self) -> list[str]:
        with closing(self._consumer()) as consumer:
            topics = [_partitions_of(consumer, topic) for topic in self.topics]
        return [name for names in topics for name in names]

    def first(self, partitions: Sequence[str]) -> dict[str, int]:
        named = self.starting if isinstance(self.starting, tuple) else ()
        offsets = {name_of(topic, number): offset for topic, number, offset in named}
        if unknown := set(offsets) - set(partitions):
            raise SettingError(
                f"starting names unknown partitions: {', '.join(sorted(unknown))}",
                hint=f"use some of {', '.join(partitions)}",
            )
        other = NEXT if self.starting == "latest" else FIRST
        wanted = {name: offsets.get(name, other) for name in partitions}
        bounds = {FIRST: 0, NEXT: 1}
        with closing(self._consumer()) as consumer:
            return {
                name: _bounds(consumer, name)[bounds[offset]] if offset in bounds else offset
                for name, offset in wanted.items()
            }

    def appeared(self, partitions: Sequence[str]) -> dict[str, int]:
        """The earliest offsets, whatever `starting` says: all messages there are newer than the flow."""
        with closing(self._consumer()) as consumer:
            return {name: _bounds(consumer, name)[0] for name in partitions}

    def positions_at(self, offset: Any) -> dict[str, int]:
        topics = offset.items()
        return {name_of(topic, int(n)): at for topic, parts in topics for n, at in parts.items()}

    def offset_at(self, positions: Mapping[str, int]) -> dict[str, dict[str, int]]:
        offsets: dict[str, dict[str, int]] = {}
        for name, offset in positions.items():
            topic, number = place_of(name)
            offsets.setdefault(topic, {})[str(number)] = offset
        return offsets

    def reader(self, positions: Mapping[str, int]) -> KafkaReader:
        return KafkaReader(self, positions)

    def rows(
        self, values: Values, of: Callable[[str], pa.Array], place: Callable[[int], str]
    ) -> tuple[pa.RecordBatch, tuple[DeadLetter, ...]]:
        """Decode values to rows, with the metadata columns; also returns the values that could not be
        decoded.

        `of` returns a field of all messages as a column, `place` the position of one message as text.
        """
        decoded = self.format.decode(values)
        extra = [of(attribute) for attribute, _ in self.metadata]
        if decoded.of is not None:
            extra = [column.take(pa.array(decoded.of)) for column in extra]
        bad = tuple(
            DeadLetter("kafka", place(n), (values[n] or b"").decode(errors="replace"), why)
            for n, why in decoded.bad
        )
        columns = [*decoded.batch.columns, *extra]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), bad

    def _consumer(self, **settings: Any) -> Any:
        confluent = imported("confluent_kafka", "kafka", "reading Kafka")
        servers = {"bootstrap.servers": self.servers}
        return confluent.Consumer(servers | _READS | dict(self.options) | settings, logger=_log)


def kafka(
    servers: str,
    topics: str | Sequence[str],
    *,
    schema: Any = None,
    format: FormatName = "json",
    arrival: str | None = "arrival",
    metadata: Sequence[str] | Mapping[str, str] = (),
    starting: Starting = "earliest",
    options: Mapping[str, Any] | None = None,
    spark_options: Mapping[str, Any] | None = None,
    epoch_rows: int | None = None,
) -> KafkaSource:
    """Kafka topics as the source of a flow.

    The columns are the fields of the messages' values, as declared by `schema`: DDL, an Arrow or Spark
    schema, or for Avro its own schema as JSON. Values are JSON objects, Avro records, Arrow streams with one
    row or many, or raw bytes in a column `value`. The column named by `arrival` holds the message's
    timestamp; latency is measured from it. `metadata` names other fields of a message that become columns:
    key, value, headers, topic, partition, offset. They have the names and types of Spark's connector;
    `{"key": "user_key"}` renames one.

    A new flow starts at `starting`: "earliest", "latest", or `{topic: {partition: offset}}`. Offset -2 means
    earliest and -1 latest; partitions that are not named start at the earliest. A restarted flow resumes from
    its checkpoint. New partitions are read from their first message on. Only committed messages are read.

    In micro-batches, an epoch takes at most `epoch_rows` messages, so that a burst or a backlog becomes many
    epochs. By default the limit is derived from the SLA and the duration of epochs (see `flow.explain()`).
    There is no limit if the flow has no SLA, or with 0. Spark's `maxOffsetsPerTrigger` in `spark_options`
    takes precedence.

    `options` are librdkafka's, for live couriers and for listing partitions. `spark_options` are those of
    Spark's connector, for micro-batches, such as `{"kafka.security.protocol": "SSL"}`. Set both if the
    brokers need TLS or authentication. A value that cannot be decoded fails the flow, or is set aside with
    `start(on_error="dead_letter")`.

    >>> orders = kafka("localhost:9092", "orders", schema="user string, amount double", metadata=["key"])
    >>> orders.schema.names
    ['user', 'amount', 'arrival', 'key']
    """
    named = (topics,) if isinstance(topics, str) else tuple(topics)
    if not servers or not named:
        raise SettingError(
            "kafka() needs servers and a topic", hint='use ps.kafka("broker:9092", "orders", ...)'
        )
    chosen = dict(
        metadata if isinstance(metadata, Mapping) else zip(metadata, metadata, strict=True)
    )
    if unknown := set(chosen) - set(METADATA):
        raise FlowError(
            f"unknown metadata: {', '.join(sorted(unknown))}",
            hint=f"use some of {', '.join(METADATA)}",
        )
    if arrival is not None:
        chosen = {"timestamp": arrival} | chosen
    if epoch_rows is not None and epoch_rows < 0:
        raise SettingError(f"epoch_rows is {epoch_rows}", hint="use 1 or more, or 0 for no limit")
    values = format_of(format, schema)
    columns = [*values.schema.names, *chosen.values()]
    if twice := {name for name in columns if columns.count(name) > 1}:
        raise FlowError(
            f"two columns have the name {', '.join(sorted(twice))}",
            hint='rename the columns for message fields: arrival="sent_at", '
            'metadata={"key": "message_key"}',
        )
    return KafkaSource(
        servers,
        named,
        values,
        tuple(chosen.items()),
        _starting(starting),
        tuple((options or {}).items()),
        tuple((name, str(value)) for name, value in (spark_options or {}).items()),
        epoch_rows,
    )


def _starting(starting: Starting) -> str | tuple[tuple[str, int, int], ...]:
    if isinstance(starting, str):
        if starting not in ("earliest", "latest"):
            raise SettingError(
                f"unknown value of starting: {starting!r}",
                hint='use "earliest", "latest" or {topic: {partition: offset}}',
            )
        return starting
    return tuple(
        (topic, int(partition), int(offset))
        for topic, offsets in starting.items()
        for partition, offset in offsets.items()
    )


def name_of(topic: str, partition: int) -> str:
    """The name of a partition."""
    return f"{topic}/{partition}"


def place_of(name: str) -> tuple[str, int]:
    """The topic and the number of a partition.

    >>> place_of("orders/3")
    ('orders', 3)
    """
    topic, number = name.rsplit("/", 1)
    return topic, int(number)


def _partitions_of(consumer: Any, topic: str) -> list[str]:
    try:
        metadata = consumer.list_topics(topic, timeout=_WAIT_S).topics[topic]
    except Exception as failed:
        raise SettingError(
            f"cannot reach Kafka: {failed}", hint="check the servers, and options such as TLS"
        ) from failed
    if metadata.error is not None or not metadata.partitions:
        raise SettingError(
            f"Kafka has no topic {topic!r}: {metadata.error}", hint="create it, or check its name"
        )
    return [name_of(topic, number) for number in sorted(metadata.partitions)]


def _bounds(consumer: Any, name: str) -> tuple[int, int]:
    """First offset of a partition, and the one after its last."""
    partition = _partition(name)
    offsets: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=_WAIT_S)
    return offsets


def _partition(name: str, *offset: int) -> Any:
    return imported("confluent_kafka", "kafka", "reading Kafka").TopicPartition(
        *place_of(name), *offset
    )


class ToldOnce:
    """Logs the first warning about an outage, and no more until it is over."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._told = log, False

    def tell(self, message: str) -> None:
        if not self._told:
            self._log.warning(message)
        self._told = True

    def over(self) -> None:
        """End the outage: the next warning is logged again."""
        self._told = False


class KafkaReader(LiveReader):
    """Reads some partitions. It joins no consumer group, since offsets are in the checkpoint."""

    def __init__(self, source: KafkaSource, positions: Mapping[str, int]) -> None:
        self._source = source
        self._fatal: Any = None
        self._away = ToldOnce(_log)
        self._consumer = source._consumer(error_cb=self._note)
        self._partitions = [_partition(name, offset) for name, offset in positions.items()]
        self._consumer.assign(self._partitions)
        self._only = place_of(next(iter(positions))) if len(positions) == 1 else None
        """The partition that is read, if there is only one."""

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        # consume() with a timeout would wait until it has all messages asked for.
        first = self._consumer.poll(wait_ms / 1000)
        if self._fatal is not None:
            raise InputError(f"Kafka: {self._fatal}", hint="check the brokers and the options")
        if first is None:
            return []
        messages = [first]
        if most_rows > 1:
            messages += self._consumer.consume(most_rows - 1, 0)
        good = [message for message in messages if message.error() is None]
        if len(good) < len(messages):
            for message in messages:
                self._check(message)
        if good:
            self._away.over()
        return [self._polled(*place, part) for place, part in self._parts(good).items()]

    def behind(self) -> int:
        """Number of messages up to the ends of partitions, as brokers sent them with the newest messages."""
        try:
            offsets = [
                (read.offset, self._consumer.get_watermark_offsets(read, cached=True)[1])
                for read in self._consumer.position(self._partitions)
            ]
        except RuntimeError:  # the consumer was closed meanwhile
            return 0
        return sum(max(0, end - offset) for offset, end in offsets if offset >= 0)

    def _parts(self, messages: list[Any]) -> dict[tuple[str, int], list[Any]]:
        """Messages by topic and partition."""
        if self._only is not None and messages:
            return {self._only: messages}
        parts: dict[tuple[str, int], list[Any]] = {}
        for message in messages:
            parts.setdefault((message.topic(), message.partition()), []).append(message)
        return parts

    def _polled(self, topic: str, partition: int, messages: Sequence[Any]) -> Polled:
        values = [message.value() for message in messages]
        name = name_of(topic, partition)
        batch, bad = self._source.rows(
            values,
            lambda attribute: _column(attribute, messages),
            lambda number: f"{name}/{messages[number].offset()}",
        )
        return Polled(batch, name, messages[-1].offset() + 1, bad)

    def _note(self, error: Any) -> None:
        if error.fatal():
            self._fatal = error
        else:
            self._away.tell(f"Kafka: {error}; retrying")

    def _check(self, message: Any) -> None:
        """Raise or log the error that librdkafka delivers in place of a message."""
        error = message.error()
        if error is None:
            return
        place = name_of(message.topic(), message.partition())
        if error.name() == "_AUTO_OFFSET_RESET":
            raise InputError(
                f"Kafka: the flow's offset in {place} is out of range: {error.str()}",
                hint="messages were deleted before they were read: raise the topic's retention; "
                "to continue without them, start from a new checkpoint",
            )
        if not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
            raise InputError(
                f"Kafka: cannot read {place}: {error.str()}",
                hint="check the topic and its permissions",
            )
        self._note(error)

    def close(self) -> None:
        self._consumer.close()


def _column(attribute: str, messages: Iterable[Any]) -> pa.Array:
    kind = METADATA[attribute]
    if attribute == "timestamp":
        times = pa.array(
            [message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")
        )
        return times.cast(kind)
    if attribute == "headers":
        return pa.array([_headers(message.headers()) for message in messages], kind)
    return pa.array([getattr(message, attribute)() for message in messages], kind)


def _headers(headers: Sequence[tuple[str, bytes]] | None) -> list[dict[str, Any]] | None:
    return headers and [{"key": key, "value": value} for key, value in headers]  # type: ignore[return-value]


@dataclass(frozen=True)
class KafkaDecoder:
    """Decodes rows from Spark's connector, in the same way as a live courier decodes messages."""

    source: KafkaSource

    @property
    def schema(self) -> pa.Schema:
        wanted = dict.fromkeys(
            ["value", "topic", "partition", "offset", *dict(self.source.metadata)]
        )
        return pa.schema([(name, METADATA[name]) for name in wanted])

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[DeadLetter]]:
        def place(number: int) -> str:
            row = batch.select(["topic", "partition", "offset"]).slice(number, 1).to_pylist()[0]
            return f"{row['topic']}/{row['partition']}/{row['offset']}"

        values = batch.column("value").to_pylist()
        return self.source.rows(
            values, lambda attribute: batch.column(attribute).cast(METADATA[attribute]), place
        )
