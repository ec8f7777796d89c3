"""Flows with certificates on Spark: they count all rows, and what Spark writes down holds no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.console.running.query import RunningQuery
from penstock.faults import Fault
from penstock.settings import Settings, Tls
from penstock.wire.access import Access
from penstock.wire.flight import PING
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_faults import await_condition
from tests.spark.test_live import counted, counts, wanted
from tests.testing.certificates import Authority

ROWS, KEYS = 2_000, 20
KILLED = Fault("host.seal", "kill", where={"host": "aggregate-1/1", "epoch": 1, "run": 0})


def main(folder: str, logs: str, certificate: str, key: str, authority: str) -> None:
    """In a process of its own, with a session that writes an event log."""
    tls = Tls(certificate, key, authority, name="penstock")
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{logs}",
    }
    spark = ps.session("secrets", cores=8, conf=conf)
    told: dict[str, Any] = {"tokens": []}
    try:
        told["micro"] = micro(spark, folder, tls, told)
        told["live"] = live(f"{folder}/live", tls, told)
    finally:
        spark.stop()
    print("told", json.dumps(told), flush=True)


def micro(spark: SparkSession, folder: str, tls: Tls, told: dict[str, Any]) -> list[Any]:
    """Three epochs with functions at hand; a host dies in the second one."""
    checkpoint = f"{folder}/micro"
    rows = spark.range(ROWS).selectExpr(f"id % {KEYS} AS k", "id AS v")
    rows.repartition(3).write.parquet(f"{folder}/rows")
    source = spark.readStream.schema("k LONG, v LONG").option("maxFilesPerTrigger", 1)
    found: dict[int, int] = {}

    def take(df: DataFrame, epoch: int) -> None:
        found.update((row["k"], row["s"]) for row in df.collect())
        if epoch == 0:
            parts = query._parts
            await_condition(lambda: parts.keeper is not None and parts.keeper.state == "up", 60)
            told["reach"] = parts.keeper and parts.keeper.reach
            told["status"] = RunningQuery(checkpoint).status()["status"]["state"]
            told["ports"], told["open"] = probe(spark, tls)
            told["control"] = (Path(checkpoint) / "penstock" / "control.json").read_text()

    flow = ps.flow(source.parquet(f"{folder}/rows")).key_by("k", slots=4).aggregate(s=ps.sum("v"))
    query = (
        flow.sla("10s")
        .elastic(at_most=2, functions=ps.LocalFunctions(at_most=1))
        .start(
            ps.foreach_batch(take),
            checkpoint=checkpoint,
            hosts=2,
            trigger="available_now",
            settings=Settings(faults=(KILLED,), tls=tls),
        )
    )
    told["tokens"] += [query._parts.access.token, query._parts.control_token]
    query.await_termination(150)
    told["runs"] = max(progress.runs for progress in query.progress)
    sums = {k: sum(range(k, ROWS, KEYS)) for k in range(KEYS)}
    return [found == sums, str(query.exception())]


def live(checkpoint: str, tls: Tls, told: dict[str, Any]) -> list[Any]:
    sink = ps.collect()
    query = counted(ROWS).start(
        sink, mode="live", checkpoint=checkpoint, couriers=2, settings=Settings(tls=tls)
    )
    told["tokens"] += [query._parts.access.token, query._parts.control_token]
    query.await_termination(60)
    return [counts(sink) == wanted(ROWS, 100), str(query.exception())]


def probe(spark: SparkSession, tls: Tls) -> tuple[int, list[str]]:
    """How many ports the driver's Python and its workers listen on, and which are open to strangers."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    # PySpark's own, for its callbacks, with a secret of its own
    gateway: Any = spark.sparkContext._gateway
    ports = {
        found.laddr.port
        for process in processes
        if "python" in process.name()
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    } - {gateway.get_callback_server().get_listening_port()}
    access, options = Access("x", tls), fl.FlightCallOptions(timeout=5)
    certain = access.client_options()
    uncertain = {k: v for k, v in certain.items() if k not in ("cert_chain", "private_key")}
    is_open = []
    for port in ports:
        for how in (certain, uncertain):
            with fl.FlightClient(f"grpc+tls://127.0.0.1:{port}", **how) as client:
                try:
                    list(client.do_action(fl.Action(PING, b""), options))
                    is_open.append(f"port {port} answers a stranger")
                except fl.FlightUnauthenticatedError:
                    if how is uncertain:
                        is_open.append(f"port {port} does not ask for a certificate")
                except fl.FlightError:
                    if how is certain:
                        is_open.append(f"port {port} is none of Penstock's")
    return len(ports), is_open


def test_a_flow_over_tls_and_no_token_in_its_checkpoint(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """What always runs of this module."""
    tls = Authority(tmp_path / "authority").tls("DNS:penstock", name="penstock")
    write_files(tmp_path / "in", numbers(files=1, rows=100, keys=7))
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k").aggregate(n=ps.count())
    query, sink = run(flow, checkpoint, hosts=1, settings=Settings(tls=tls))
    assert sum(row["n"] for row in sink.rows()) == 100
    written = b"".join(file.read_bytes() for file in Path(checkpoint).rglob("*") if file.is_file())
    for token in (query._parts.access.token, query._parts.control_token):
        assert token.encode() not in written


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_flows_over_tls_and_no_secret_in_what_spark_writes(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "authority").tls("DNS:penstock")
    work, logs = tmp_path / "work", tmp_path / "logs"
    logs.mkdir()
    process = subprocess.run(
        [sys.executable, __file__, str(work), str(logs), tls.certificate, tls.key, tls.authority],
        stdout=subprocess.PIPE,
        text=True,
        timeout=270,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    [line] = [one for one in process.stdout.splitlines() if one.startswith("told ")]
    told = json.loads(line.removeprefix("told "))
    assert told["micro"] == told["live"] == [True, "None"]
    assert told["status"] == "running"
    assert told["open"] == []
    assert told["ports"] >= 4  # the driver, two hosts and the service of the functions
    assert sorted(json.loads(told["control"])) == ["flow", "location", "pid", "run"]
    assert "grpc+tls://" in told["control"]
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    events = b"".join(file.read_bytes() for file in written if logs in file.parents)
    assert b'"penstock.plan"' in events, "the log holds no plan: it proves nothing"
    assert "grpc+tls://" in told["reach"]  # it goes into plans, too
    assert told["runs"] > 1
    assert len(set(told["tokens"])) == 4
    for token in told["tokens"]:
        assert token not in told["reach"]
        assert [str(file) for file in written if token.encode() in file.read_bytes()] == []
    state = Path(os.environ["XDG_STATE_HOME"])
    assert [file.name for file in state.rglob("*.json")] == []


if __name__ == "__main__":
    main(*sys.argv[1:])
