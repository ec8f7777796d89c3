"""Flows with certificates on Spark: they count all rows, and what Spark writes down holds no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.flight as fl
import pytest

import penstock as ps
from penstock.console.running.query import RunningQuery
from penstock.settings import Settings, Tls
from penstock.wire.access import Access
from penstock.wire.flight import PING
from tests.spark.test_faults import await_condition
from tests.spark.test_live import counted, counts, wanted
from tests.spark.test_offload import SLOW, carried_since, expected, flow
from tests.testing.certificates import Authority

ROWS = 2_000


def main(folder: str, logs: str, *files: str) -> None:
    """In a process of its own, with a session that writes an event log."""
    tls = Tls(*files, name="penstock")
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{logs}",
    }
    spark = ps.session("secrets", cores=8, conf=conf)
    told: dict[str, Any] = {"tokens": []}
    try:
        told["micro"] = micro(flow(spark, "burst(300, 5, 6s, 60s)"), f"{folder}/micro", tls, told)
        told["live"] = live(f"{folder}/live", tls, told)
    finally:
        spark.stop()
    print("told", json.dumps(told), flush=True)


def micro(made: ps.Flow, checkpoint: str, tls: Tls, told: dict[str, Any]) -> list[Any]:
    """A burst that functions carry, and a host that is killed meanwhile."""
    sink, settings = ps.collect(), Settings(faults=SLOW, progress_kept=10_000, tls=tls)
    query = made.start(sink, checkpoint=checkpoint, hosts=2, settings=settings)
    try:
        await_condition(lambda: carried_since(query, -1) > 100, 60)
        told["status"] = RunningQuery(checkpoint).status()["status"]["state"]
        told["ports"], told["open"] = probe(tls)
        runs = len(query.progress)
        os.kill(next(iter(query.status.hosts.values())), signal.SIGKILL)
        await_condition(lambda: any(p.runs > 1 for p in query.progress[runs - 1 :]), 60)
        told["tokens"] += [query._parts.access.token, query._parts.control_token]
        told["control"] = (Path(checkpoint) / "penstock" / "control.json").read_text()
    finally:
        query.stop()
    found = {k: (r["s"], r["n"]) for k, r in sink.latest("k").items()}
    return [found == expected(sum(p.rows for p in query.progress)), str(query.exception())]


def live(checkpoint: str, tls: Tls, told: dict[str, Any]) -> list[Any]:
    sink = ps.collect()
    query = counted(ROWS).start(
        sink, mode="live", checkpoint=checkpoint, couriers=2, settings=Settings(tls=tls)
    )
    told["tokens"] += [query._parts.access.token, query._parts.control_token]
    query.await_termination(60)
    return [counts(sink) == wanted(ROWS, 100), str(query.exception())]


def probe(tls: Tls) -> tuple[int, list[str]]:
    """How many ports the driver's Python and its workers listen on, and which are open to strangers."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ports = {
        found.laddr.port
        for process in processes
        if "python" in process.name()
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }
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
    assert b'\\"reach\\":\\"{' in events or b"reach" in events
    assert len(told["tokens"]) == 4
    for token in told["tokens"]:
        assert [str(file) for file in written if token.encode() in file.read_bytes()] == []
    state = Path(os.environ["XDG_STATE_HOME"])
    assert [file.name for file in state.rglob("*.json")] == []


if __name__ == "__main__":
    main(*sys.argv[1:])
