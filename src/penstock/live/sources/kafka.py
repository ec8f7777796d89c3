"""Topics of Kafka: read by confluent-kafka in live couriers, by Spark's connector in micro-batches.

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
"""Seconds that the brokers have to tell about topics and offsets."""
_READS = {
    "enable.auto.commit": False,
    "enable.partition.eof": False,
    # A position that is gone is an error: rows would be missing, and nobody would know.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 20,
    # When it has so many messages that a courier has not polled, librdkafka fetches no more for so long. By
    # default that is a second, and a backlog went at 120,000 rows a second instead of 370,000.
    "queued.min.messages": 200_000,
    "fetch.queue.backoff.ms": 5,
    "socket.nagle.disable": True,
    "log_level": 2,  # it is told once that brokers cannot be reached, not at each attempt
    "group.id": "penstock",  # librdkafka wants one; no group is joined, nothing is committed
}
_LIMITS = ("maxoffsetspertrigger", "maxtriggerdelay", "minoffsetspertrigger")
"""Options of Spark's connector by which users say how much an epoch takes, in small letters."""
FIRST, NEXT = -2, -1
"""Offsets in `starting` that stand for the earliest and for the latest, as in Spark's connector."""
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
"""What a message has, under the names and types that Spark's connector gives it."""

Starting = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class KafkaSource(LiveSource):
    """Topics of Kafka. Made by `kafka`."""

    servers: str
    topics: tuple[str, ...]
    format: Format
    metadata: tuple[tuple[str, str], ...] = ()
    """(what of a message, the column it is in)."""
    starting: str | tuple[tuple[str, int, int], ...] = "earliest"
    """"earliest", "latest", or (topic, partition, offset) of some partitions; the others: earliest."""
    # They may hold passwords, so no message and no log shows them.
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    spark_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    epoch_rows: int | None = None
    """Rows that an epoch of micro-batches takes at most; 0: all that are there; None: as the SLA says."""

    @property
    def schema(self) -> pa.Schema:
        meta = [pa.field(column, METADATA[what]) for what, column in self.metadata]
        return pa.schema([*self.format.schema, *meta])

    @property
    def arrival(self) -> str | None:
        return dict(self.metadata).get("timestamp")

    @property
    def bounded_by_sla(self) -> bool:
        """Whether nobody has said how many rows an epoch takes."""
        return self.epoch_rows is None and not any(
            name.lower() in _LIMITS for name, _ in self.spark_options
        )

    @property
    def decoder(self) -> SourceDecoder:
        return KafkaDecoder(self)

    def partitions(self) -> list[str]:
        with closing(self._consumer()) as consumer:
            found = [_partitions_of(consumer, topic) for topic in self.topics]
        return [name for names in found for name in names]

    def first(self, partitions: Sequence[str]) -> dict[str, int]:
        named = self.starting if isinstance(self.starting, tuple) else ()
        given = {name_of(topic, number): offset for topic, number, offset in named}
        if unknown := set(given) - set(partitions):
            raise SettingError(
                f"starting names partitions that are not there: {', '.join(sorted(unknown))}",
                hint=f"there are {', '.join(partitions)}",
            )
        other = NEXT if self.starting == "latest" else FIRST
        wanted = {name: given.get(name, other) for name in partitions}
        bounds = {FIRST: 0, NEXT: 1}
        with closing(self._consumer()) as consumer:
            return {
                name: _bounds(consumer, name)[bounds[offset]] if offset in bounds else offset
                for name, offset in wanted.items()
            }

    def appeared(self, partitions: Sequence[str]) -> dict[str, int]:
        """At the earliest, whatever `starting` says: all that is in them came after the flow had begun."""
        with closing(self._consumer()) as consumer:
            return {name: _bounds(consumer, name)[0] for name in partitions}

    def positions_at(self, offset: Any) -> dict[str, int]:
        found = offset.items()
        return {name_of(topic, int(n)): at for topic, parts in found for n, at in parts.items()}

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
        """Rows of these values and of what else their messages have, and the values that are none.

        `of` gives what messages have, `place` says where one stands.
        """
        decoded = self.format.decode(values)
        extra = [of(what) for what, _ in self.metadata]
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
    """Topics of Kafka as the source of a flow.

    Columns are the fields of the messages' values, as `schema` (DDL, Arrow's or Spark's; for Avro its own,
    as JSON) says: JSON objects, Avro records, Arrow streams of a row or many, or raw bytes in a column
    `value`. A column named by `arrival` has the message's timestamp, which latency is measured from.
    `metadata` names what else of a message becomes a column: key, value, headers, topic, partition, offset,
    with names and types as in Spark's connector; `{"key": "user_key"}` gives it another name.

    A new flow begins at `starting`: "earliest", "latest", or `{topic: {partition: offset}}`, where -2 is the
    earliest and -1 the latest, and partitions that are not named begin at the earliest. Later it goes on
    from its checkpoint; partitions that are new are read from their first message on. Only committed messages
    are read.

    In micro-batches an epoch takes at most `epoch_rows` of them, so that a burst or a backlog becomes many
    epochs. By default that follows from the SLA and from how long epochs take (`flow.explain()`), or there
    is no limit if the flow has no SLA; 0 is no limit either. Spark's `maxOffsetsPerTrigger` in
    `spark_options` counts instead.

    `options` are librdkafka's, for live couriers (and to find the partitions); `spark_options` are those of
    Spark's connector, for micro-batches, such as `{"kafka.security.protocol": "SSL"}`. Both are needed where
    brokers ask for more than an address. A value that cannot be read ends the flow, or with
    `start(on_error="dead_letter")` is set aside.

    >>> orders = kafka("localhost:9092", "orders", schema="user string, amount double", metadata=["key"])
    >>> orders.schema.names
    ['user', 'amount', 'arrival', 'key']
    """
    named = (topics,) if isinstance(topics, str) else tuple(topics)
    if not servers or not named:
        raise SettingError(
            "kafka needs servers and a topic", hint='such as ps.kafka("broker:9092", "orders", ...)'
        )
    chosen = dict(
        metadata if isinstance(metadata, Mapping) else zip(metadata, metadata, strict=True)
    )
    if unknown := set(chosen) - set(METADATA):
        raise FlowError(
            f"messages have no {', '.join(sorted(unknown))}",
            hint=f"metadata can be {', '.join(METADATA)}",
        )
    if arrival is not None:
        chosen = {"timestamp": arrival} | chosen
    if epoch_rows is not None and epoch_rows < 0:
        raise SettingError(f"epoch_rows is {epoch_rows}", hint="use 1 or more, or 0 for no limit")
    values = format_of(format, schema)
    columns = [*values.schema.names, *chosen.values()]
    if twice := {name for name in columns if columns.count(name) > 1}:
        raise FlowError(
            f"two columns would be called {', '.join(sorted(twice))}",
            hint='give what comes from the message another name: arrival="sent_at", '
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
                f"unknown starting position {starting!r}",
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
        found = consumer.list_topics(topic, timeout=_WAIT_S).topics[topic]
    except Exception as silent:
        raise SettingError(
            f"cannot reach Kafka: {silent}", hint="check the servers, and options such as TLS"
        ) from silent
    if found.error is not None or not found.partitions:
        raise SettingError(
            f"Kafka has no topic {topic!r}: {found.error}", hint="create it, or check its name"
        )
    return [name_of(topic, number) for number in sorted(found.partitions)]


def _bounds(consumer: Any, name: str) -> tuple[int, int]:
    """The first offset of a partition, and the one after its last."""
    partition = _partition(name)
    found: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=_WAIT_S)
    return found


def _partition(name: str, *offset: int) -> Any:
    return imported("confluent_kafka", "kafka", "reading Kafka").TopicPartition(
        *place_of(name), *offset
    )


class ToldOnce:
    """Logs the first warning of a trouble, and no more until it is over."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._told = log, False

    def tell(self, message: str) -> None:
        if not self._told:
            self._log.warning(message)
        self._told = True

    def over(self) -> None:
        """The next one is another trouble."""
        self._told = False


class KafkaReader(LiveReader):
    """Reads some partitions from offsets on. It belongs to no consumer group: the checkpoint has the
    offsets."""

    def __init__(self, source: KafkaSource, positions: Mapping[str, int]) -> None:
        self._source = source
        self._fatal: Any = None
        self._away = ToldOnce(_log)
        self._consumer = source._consumer(error_cb=self._note)
        self._partitions = [_partition(name, offset) for name, offset in positions.items()]
        self._consumer.assign(self._partitions)
        self._only = place_of(next(iter(positions))) if len(positions) == 1 else None
        """The one partition that is read, if it is one."""

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        # consume() with a time-out waits until it has as many as it may give.
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
        """By the ends of partitions that brokers told with the newest messages."""
        try:
            found = [
                (read.offset, self._consumer.get_watermark_offsets(read, cached=True)[1])
                for read in self._consumer.position(self._partitions)
            ]
        except RuntimeError:  # it was closed meanwhile
            return 0
        return sum(max(0, end - offset) for offset, end in found if offset >= 0)

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
            lambda what: _column(what, messages),
            lambda number: f"{name}/{messages[number].offset()}",
        )
        return Polled(batch, name, messages[-1].offset() + 1, bad)

    def _note(self, error: Any) -> None:
        if error.fatal():
            self._fatal = error
        else:
            self._away.tell(f"Kafka, tried again: {error}")

    def _check(self, message: Any) -> None:
        """What stands in the place of messages when a partition cannot be read."""
        error = message.error()
        if error is None:
            return
        place = name_of(message.topic(), message.partition())
        if error.name() == "_AUTO_OFFSET_RESET":
            raise InputError(
                f"Kafka: messages of {place} that the flow has to read are gone: {error.str()}",
                hint="keep messages for longer; to go on without them, start from a new checkpoint",
            )
        if not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
            raise InputError(
                f"Kafka: cannot read {place}: {error.str()}", hint="check the topic and its rights"
            )
        self._note(error)

    def close(self) -> None:
        self._consumer.close()


def _column(what: str, messages: Iterable[Any]) -> pa.Array:
    kind = METADATA[what]
    if what == "timestamp":
        times = pa.array(
            [message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")
        )
        return times.cast(kind)
    if what == "headers":
        return pa.array([_headers(message.headers()) for message in messages], kind)
    return pa.array([getattr(message, what)() for message in messages], kind)


def _headers(headers: Sequence[tuple[str, bytes]] | None) -> list[dict[str, Any]] | None:
    return headers and [{"key": key, "value": value} for key, value in headers]  # type: ignore[return-value]


@dataclass(frozen=True)
class KafkaDecoder:
    """Decodes what Spark's connector has read, as a live courier decodes messages."""

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
        return self.source.rows(values, lambda what: batch.column(what).cast(METADATA[what]), place)
