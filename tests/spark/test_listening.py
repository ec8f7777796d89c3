"""Addresses of a flow's processes: a range of ports, loopback in local mode, IPv6."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import numbers, stream, write_files
from tests.spark.test_live import until


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses and ports that a process listens on."""
    found = psutil.Process(pid).net_connections("inet")
    some = [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
    return {(place.ip.removeprefix("::ffff:"), place.port) for place in some}


def free_ports(count: int) -> range:
    for first in range(20_000 + os.getpid() % 1000 * count, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return range(first, first + count)
    raise OSError("no ports are free")


def test_hosts_and_driver_listen_in_the_range_and_on_loopback_alone(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    folder = tmp_path / "in"
    write_files(folder, numbers(files=1, rows=100, keys=7))
    ports, before = free_ports(4), listening(os.getpid())
    with socket.create_server(("127.0.0.1", ports[0])):
        query = (
            ps.flow(stream(spark, folder))
            .key_by("k")
            .aggregate(n=ps.count())
            .start(
                ps.collect(),
                checkpoint=checkpoint,
                hosts=2,
                settings=ps.Settings(ports=f"{ports[0]}-{ports[-1]}"),
            )
        )
        try:
            until(query, lambda: query.progress)
            hosts = [listening(pid) for pid in query.status.hosts.values()]
            driver = listening(os.getpid()) - before - {("127.0.0.1", ports[0])}
        finally:
            query.stop()
    assert {address for address, _ in driver} == {"127.0.0.1"}
    ours = {place for place in driver if place[1] in ports}  # Spark's JVM calls the driver too
    assert all(len(places) == 1 for places in (*hosts, ours))
    assert set().union(ours, *hosts) == {("127.0.0.1", port) for port in ports[1:]}


ON_IPV6 = """
import json, os, sys
import psutil
import penstock as ps
from tests.spark.test_listening import listening

spark = ps.session(cores=6)
rows = spark.range(1000).selectExpr("id % 7 AS k", "id AS v").repartition(2)
sink, checkpoint = ps.collect(), sys.argv[1]
query = ps.flow(rows).key_by("k").aggregate(n=ps.count()).start(sink, checkpoint=checkpoint, hosts=2)
seen = set()
while query.is_active:
    for pid in (os.getpid(), *query.status.hosts.values()):
        try:
            seen |= {address for address, _ in listening(pid)}
        except psutil.Error:
            pass
query.await_termination()
host = spark.sparkContext.getConf().get("spark.driver.host")
print(json.dumps([host, sorted(seen), sum(row["n"] for row in sink.rows())]))
spark.stop()
"""


@pytest.mark.slow
def test_a_flow_with_everything_on_ipv6(checkpoint: str) -> None:
    prefer = "-Djava.net.preferIPv6Addresses=true"
    environ = os.environ | {"SPARK_LOCAL_IP": "::1", "JDK_JAVA_OPTIONS": prefer}
    command = [sys.executable, "-c", ON_IPV6, checkpoint]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    host, seen, rows = json.loads(done.stdout.splitlines()[-1])
    assert host in ("[::1]", "[0:0:0:0:0:0:0:1]")
    assert "::1" in seen
    assert rows == 1000
