"""The same topic read in micro-batches, with Spark's connector, and by a live courier: the same rows and the
same dead letters; and messages written by Spark.

Spark runs in its own process, with the connector in its session.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import SettingError
from penstock.spark.connector import connector_jars
from penstock_bench.broker import Broker
from tests.kafka.test_source import fill, read

pytestmark = pytest.mark.kafka

DRIVER = """
import json, sys, time
from pathlib import Path
import penstock as ps

servers, topic, out, folder = sys.argv[1:]
spark = ps.session(cores=6, kafka=True, conf={
    "spark.sql.session.timeZone": "Asia/Tokyo", "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": folder, "spark.log.level": "INFO"})
secret = {"kafka.ssl.key.password": "HUSH-1",
          "kafka.sasl.jaas.config": 'some.Module required password="HUSH-2";'}
source = ps.kafka(servers, topic, schema="n long, word string", starting={topic: {1: 7}},
                  spark_options=secret, metadata=["key", "headers", "topic", "partition", "offset"])
rows, sums = ps.collect(), ps.collect()

ps.flow(source).start(rows, checkpoint=f"{folder}/rows", trigger="available_now",
                      on_error="dead_letter").await_termination(120)
(ps.flow(source, event_time="arrival").key_by("word").aggregate(n=ps.count()).start(
    ps.to("kafka", servers=servers, topic=out, key="word", spark_options=secret),
    checkpoint=f"{folder}/sums",
    trigger="available_now", on_error="dead_letter").await_termination(120))
letters = [json.loads(line) for file in Path(folder, "rows").rglob("dead_letters/*.jsonl")
           for line in file.read_text().splitlines()]
failed = ""
query = ps.flow(source).start(ps.collect(), checkpoint=f"{folder}/fails", trigger="available_now")
try:
    query.await_termination(60)
except ps.PenstockError as error:
    failed = str(error)
print("RESULT", json.dumps([rows.rows(), letters, failed], default=repr))
"""


WITHOUT = """
import sys
import penstock as ps

spark = ps.session(cores=2)
flow = ps.flow(ps.kafka("localhost:1", "orders", schema="n long"))
for sink in (ps.collect(), ps.to("kafka", servers="localhost:1", topic="out")):
    try:
        flow.start(sink, checkpoint=sys.argv[1])
    except ps.PenstockError as refused:
        print("REFUSED", refused)
"""


def test_a_session_without_the_connector_is_told_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    refused = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 2, done.stderr[-2000:]
    assert all("ps.session(kafka=True)" in line for line in refused)


def test_micro_batches_read_what_a_courier_reads(kafka: Broker, topic: str, tmp_path: Path) -> None:
    try:
        connector_jars()
    except SettingError as missing:
        pytest.skip(f"no connector: {missing}")
    fill(kafka, topic, range(300))
    kafka.produce(
        topic, [{"value": value, "partition": 2, "timestamp": 5} for value in ("oops", None)]
    )
    source = ps.kafka(
        kafka.servers,
        topic,
        schema="n long, word string",
        starting={topic: {1: 7}},
        metadata=["key", "headers", "topic", "partition", "offset"],
    )
    polled = read(source, source.first(source.partitions()), 295)
    live = [row for one in polled for row in one.batch.to_pylist()]
    assert len(live) == 300 - 7 + 1
    out = kafka.create(f"{topic}-out")

    arguments = [kafka.servers, topic, out, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments], capture_output=True, text=True, timeout=280
    )
    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith("RESULT ")
    ] or pytest.fail(done.stdout + done.stderr[-9000:])
    micro, letters, failed = json.loads(line.removeprefix("RESULT "))

    def place(row: dict[str, Any]) -> tuple[int, int]:
        return row["partition"], row["offset"]

    as_text = json.loads(json.dumps(live, default=repr))
    assert sorted(micro, key=place) == sorted(as_text, key=place)
    (bad,) = [bad for one in polled for bad in one.bad]
    assert [(letter["key"], letter["row"]) for letter in letters] == [(bad.key, bad.row)]
    assert bad.key in failed
    assert "dead_letter" in failed

    counts = {
        message.key().decode(): json.loads(message.value()) for message in kafka.messages(out)
    }
    words = [row["word"] for row in live if row["word"] is not None]
    assert counts == {word: {"word": word, "n": words.count(word)} for word in set(words)}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    leaks = [path for path in files if b"HUSH" in path.read_bytes()]
    assert not leaks, "a password is in the checkpoint, or in Spark's event log"
    assert "HUSH" not in done.stderr
