"""A real Kafka broker on this machine, for tests and benchmarks: KRaft mode, from Maven artifacts.

The artifacts are downloaded once, into the user's cache (`penstock.spark.maven`). A broker takes half a
gigabyte of memory and a second or two to start, and listens on free ports.

`python -m penstock_bench.broker` runs one at localhost:9092 until Ctrl-C, for trying things out.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock.live.sources.kafka import kafka
from penstock.spark.maven import Artifact, is_cached, jar_folder

KAFKA = "4.1.0"
_BROKER = f"kafka-{KAFKA}"
"""Folder of the broker's artifacts in the cache."""
_COME_UP_S = 60
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{address}:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""


class Broker:
    """A running broker. `servers` is its address."""

    def __init__(self, jars: Path, folder: Path, servers: str) -> None:
        """Start a broker with the settings in the folder, where it also keeps its data."""
        self.servers, self._folder = servers, folder
        settings = str(folder / "server.properties")
        self._command = ["java", "-Xmx512m", "-cp", f"{jars}/*", "kafka.Kafka", settings]
        self.start()

    def start(self) -> None:
        """Start its process, with the same port and data after a restart, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            process = self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            _wait(lambda: process.poll() is not None or _answers(self.servers))
            if process.poll() is not None:
                log_end = (self._folder / "log").read_text()[-2000:]
                raise SettingError(f"the broker did not start: {log_end}")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End its process at once."""
        self.process.kill()
        self.process.wait()

    def create(self, topic: str, partitions: int = 1) -> str:
        """Create a topic; returns its name."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        # A topic can be used once its partitions have a leader.
        _wait(lambda: len(kafka(self.servers, topic, format="raw").partitions()) == partitions)
        return topic

    def grow(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`, and wait until it has them."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewPartitions

        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        _wait(lambda: len(kafka(self.servers, topic, format="raw").partitions()) == partitions)

    def produce(self, topic: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Write messages and wait until the broker has them. Each is a set of arguments for confluent-kafka's
        `produce`."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 2}
        producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
        for message in messages:
            while True:
                try:
                    producer.produce(topic, **message)
                    break
                except BufferError:  # the broker is slow: wait for it
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(120):
            raise SettingError(f"the broker did not accept all messages for {topic}")

    def messages(self, topic: str) -> list[Any]:
        """All committed messages of a topic, by partition."""
        source = kafka(self.servers, topic, format="raw", options={"enable.partition.eof": True})
        consumer = source._consumer()
        messages: list[Any] = []
        try:
            for name, position in source.first(source.partitions()).items():
                messages += _messages(consumer, name, position)
        finally:
            consumer.close()
        return messages


def _messages(consumer: Any, name: str, position: int) -> list[Any]:
    """Messages of a partition up to its end. The end is taken from the consumer's EOF event, because
    transaction markers also have offsets."""
    from confluent_kafka import KafkaError, TopicPartition

    topic, number = name.rsplit("/", 1)
    consumer.assign([TopicPartition(topic, int(number), position)])
    messages: list[Any] = []
    until, ended = time.monotonic() + 20, False
    while not ended and time.monotonic() < until:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended = True
    consumer.unassign()
    return messages


@contextmanager
def running_broker(address: str = "127.0.0.1", port: int | None = None) -> Iterator[Broker]:
    """A broker at an address of this machine, which ends with the block. By default its port is a free one.

    Raises `SettingError` if its artifacts cannot be downloaded.
    """
    jars = broker_jars()
    folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
    free, controller = _free_ports(2)
    port = free if port is None else port
    settings = folder / "server.properties"
    settings.write_text(
        _SETTINGS.format(address=address, port=port, controller=controller, folder=folder)
    )
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    cluster = "AAAAAAAAAAAAAAAAAAAAAQ"
    try:
        with (folder / "log").open("wb") as log:
            form = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            subprocess.run([*java, *form], check=True, stdout=log, stderr=log, timeout=_COME_UP_S)
        broker = Broker(jars, folder, f"{address}:{port}")
        try:
            yield broker
        finally:
            broker.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def broker_jars() -> Path:
    """Folder with the jars of the broker and its dependencies, downloaded if needed."""
    return jar_folder(_BROKER, [Artifact("org.apache.kafka", "kafka_2.13", KAFKA)], transitive=True)


def has_broker() -> bool:
    """Whether the broker's jars are in the cache. Downloads nothing."""
    return is_cached(_BROKER)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _answers(servers: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        address, _, port = servers.rpartition(":")
        with socket.create_connection((address, int(port)), 0.2):
            pass
        return bool(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=1).brokers)
    except (OSError, KafkaException):
        return False


def _wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + _COME_UP_S
    while True:
        try:
            if done():
                return
        except SettingError:
            pass
        if time.monotonic() > until:
            raise SettingError("the broker does not answer", hint="see its log")
        time.sleep(0.05)


def main(port: int = 9092) -> None:
    """Run a broker until Ctrl-C or SIGTERM. What it holds is deleted then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running_broker(port=port) as broker, suppress(KeyboardInterrupt):
        print(
            f"Kafka {KAFKA} runs at {broker.servers}. Ctrl-C ends it, and deletes its topics.",
            flush=True,
        )
        broker.process.wait()


if __name__ == "__main__":
    main()
