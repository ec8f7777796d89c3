"""`penstock ctl` with real calls to a driver's service, in front of a fake query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.console.running.query import RunningQuery
from penstock.control.elastic import Steering
from penstock.control.examine.success import Success
from penstock.control.journal.entry import Entry
from penstock.driver.progress import (
    EpochProgress,
    HostProgress,
    Latency,
    MigrationProgress,
)
from penstock.errors import SettingError
from penstock.model import HostId, StepId
from penstock.plan.migration import Migration
from penstock.plan.placement import Handover
from penstock.plan.topology import Topology
from penstock.spark.control import actions
from penstock.spark.query import FlowQuery, QueryStatus
from penstock.state.keys.text import KeyText
from penstock.state.store.store import FORMAT, Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import TokenServer
from tests.console.running.steered_query import TOKEN, announce, run

HOSTS = [HostId("sum/0"), HostId("sum/1")]


class StandIn:
    """A fake query for `penstock ctl`: its slots really move, and it has no state."""

    is_elastic = False
    backlog = 77
    journal: tuple[Entry, ...] = ()

    def __init__(self, *steps: str) -> None:
        self._migration = Migration.parse("lazy")
        self.topologies = {
            step: Topology(StepId(step), 8, [HostId(f"{step}/{n}") for n in range(2)])
            for step in steps
        }
        self.keys: list[str] = []
        self.scaled: list[tuple[str, int]] = []
        self.steered: list[dict[str, Any]] = []
        self.progress: list[EpochProgress] = []
        self.boundary(-1)

    def boundary(self, version: int) -> list[Handover]:
        return [
            handover
            for topology in self.topologies.values()
            for handover in topology.advance(version, topology.hosts, self._migration)
        ]

    @property
    def status(self) -> QueryStatus:
        pids = {str(host): 4711 + n for n, host in enumerate(HOSTS)}
        newest = self.progress[-1].epoch if self.progress else None
        pending = sum(topology.pending for topology in self.topologies.values())
        return QueryStatus("running", newest, pids, "running", str(self._migration), pending)

    @property
    def migration(self) -> Migration:
        return self._migration

    @migration.setter
    def migration(self, migration: str) -> None:
        self._migration = Migration.parse(migration)

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        return {step: topology.placements_json() for step, topology in self.topologies.items()}

    def move(self, step: str, slots: Iterable[int], to: str, *, keys: Iterable[str] = ()) -> None:
        self.topologies[step].move(slots, HostId(to))
        self.keys += keys

    def scale(self, step: str, hosts: int) -> None:
        self.scaled.append((step, hosts))

    def slot_success(self) -> dict[str, list[Success]]:
        kept = [Success(1.0, 1.0 - slot / 100, 0.9) for slot in range(8)]
        return {f"{step}: p99": kept for step in self.topologies}

    def steer(self, steering: Steering) -> dict[str, Any]:
        self.steered.append(steering.changes)
        return {"steered": True}


Serve = Callable[..., StandIn]


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    """A function that starts a query on the checkpoint with these steps."""
    servers = []

    def started(*steps: str) -> StandIn:
        query = StandIn(*steps)
        server = TokenServer(LOOPBACK, Access("the run's"), TOKEN)
        server.actions |= actions(cast(FlowQuery, query))
        servers.append(server)
        claim(store, *steps)
        announce(store, server.location, os.getpid())
        return query

    yield started
    for server in servers:
        server.shutdown()


def claim(store: Store, *steps: str) -> None:
    facts = [{"id": step, "slots": 8, "keys": [], "state": []} for step in steps]
    store.write_flow({"format": FORMAT, "id": "f00d", "steps": facts})


def epoch(number: int, handovers: list[Handover]) -> EpochProgress:
    return EpochProgress(
        epoch=number,
        runs=1,
        rows=2_000,
        partitions=2,
        started_ms=0,
        sink_ms=12.5,
        seal_ms=1.5,
        latency=Latency(10.0, 9.0, 20.0),
        watermark_ms=None,
        dead_letters=0,
        late_rows={},
        hosts=(HostProgress("sum/0", 12_345, 6_700_000, 900, 8.0),),
        migration=MigrationProgress(
            handovers=tuple(handovers),
            fetched_keys=321,
            fetched_bytes=4_560_000,
            fetches=7,
            wait_ms=35.4,
            partial_slots=3,
            left_behind=88,
            evicted=11,
        ),
    )


def test_status(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum")
    query.move("sum", [0, 1], "sum/1")
    query.progress.append(epoch(41, query.boundary(41)))
    query.move("sum", [7], "sum/0")
    assert run("status", str(tmp_path)) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "running epoch 41 migration lazy 1 slot pending" in text
    assert "sum/0 4711 2-3 12,345 6.7 900 1 7" in text
    assert "sum/1 4712 0-1,4-7 - - -" in text
    assert "slots moved 0-1: sum/0 to sum/1 (move)" in text
    assert "fetched 321 keys, 4.6 MB" in text
    assert "round trips 7 rows waited 35 ms" in text
    assert "partial slots 3 left behind 88 keys, not requested yet" in text
    assert "evicted 11 keys" in text
    assert (
        "worst slots sum: p99, last hour: 93.0 % in slot 7, 94.0 % in slot 6, 95.0 % in slot 5 "
        in text
    )


def test_status_as_json(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum")
    query.progress.append(epoch(3, []))
    assert run("status", str(tmp_path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"]["hosts"] == {"sum/0": 4711, "sum/1": 4712}
    assert facts["placements"]["sum"][0]["slots"] == "0-3"
    assert facts["progress"]["migration"]["fetches"] == 7


def test_status_before_the_first_epoch(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve("sum")
    query.topologies.clear()
    assert run("status", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert "no epoch yet" in text
    assert "sum/1" in text


def test_move(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum")
    assert run("move", str(tmp_path), "--slots", "3,0-1", "--to", "sum/1") == 0
    assert capsys.readouterr().out == "slots 0-1,3 of sum move to sum/1 from the next epoch on\n"
    (handover,) = query.boundary(0)
    assert (handover.slots, handover.target) == ((0, 1, 3), "sum/1")


def test_move_keys(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum")
    assert run("move", str(tmp_path), "--key", "ann,7", "--key", "bob,8", "--to", "sum/1") == 0
    assert capsys.readouterr().out == (
        "keys ann,7; bob,8 of sum move to sum/1 from the next epoch on\n"
    )
    assert query.keys == [KeyText("ann,7"), KeyText("bob,8")]
    assert all(isinstance(key, KeyText) for key in query.keys)
    assert query.boundary(0) == []


def test_scale(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum", "max")
    assert run("scale", str(tmp_path), "--step", "max", "--hosts", "3") == 0
    assert query.scaled == [("max", 3)]
    assert capsys.readouterr().out == "max goes to 3 hosts\n"


def test_migration(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve("sum")
    assert run("migration", str(tmp_path), "Batched( 8 )") == 0
    assert capsys.readouterr().out == "migration is now batched(8)\n"
    assert query.migration == Migration.parse("batched(8)")


def test_steer(serve: Serve, tmp_path: Path) -> None:
    query = serve("sum")
    others: dict[str, Any] = {"margin": 0.3, "at_least": 2, "at_most": 6}
    others |= {"policy": "drs", "dry_run": False}
    changes = Steering(latency="1500 ms", window="5s", alert=0.3, **others)
    assert RunningQuery(str(tmp_path)).steer(changes) == {"steered": True}
    assert query.steered == [others | {"latency": 1.5, "window": 5.0, "alert": 0.3}]


def test_journal(serve: Serve, tmp_path: Path) -> None:
    query = serve("sum")
    query.journal = tuple(Entry(float(n), n, "sum", "done", f"epoch {n}") for n in range(5))
    assert RunningQuery(str(tmp_path)).journal(2) == list(query.journal[3:])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["move", "--slots", "0", "--to", "sum/9"], "step sum has no host 'sum/9'"),
        (["move", "--slots", "8", "--to", "sum/1"], "there is no slot 8"),
        (["move", "--slots", "5-3", "--to", "sum/1"], "is not a slot or a range of slots"),
        (["move", "--slots", " ", "--to", "sum/1"], "no slots to move"),
        (["move", "--slots", "0", "--to", "sum/1", "--step", "x"], "there is no step 'x'"),
        (["migration", "sideways"], "unknown migration 'sideways'"),
    ],
)
def test_orders_that_make_no_sense(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    serve("sum")
    verb, *rest = arguments
    assert run(verb, str(tmp_path), *rest) == 2
    error = capsys.readouterr().err
    assert error.startswith("SettingError: ")
    assert text in error
    assert "What to do: " in error


def test_the_step_must_be_named_if_there_are_several(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve("sum", "max")
    assert run("scale", str(tmp_path), "--hosts", "3") == 2
    assert "give --step, one of: sum, max" in capsys.readouterr().err


def test_no_query_runs_there(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(store, "sum")
    assert run("status", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(f"SettingError: no query runs on {tmp_path}\n")


def test_not_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", str(tmp_path)) == 2
    assert "is not a Penstock checkpoint" in capsys.readouterr().err


def test_the_query_has_died(store: Store, tmp_path: Path) -> None:
    claim(store, "sum")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    announce(store, "grpc://127.0.0.1:1", gone.pid)
    with pytest.raises(
        SettingError, match=f"its process {gone.pid} no longer runs.*start the flow"
    ):
        RunningQuery(str(tmp_path)).status()


def test_no_answer(store: Store, tmp_path: Path) -> None:
    claim(store, "sum")
    server = TokenServer(LOOPBACK, Access("the run's"), TOKEN)
    location = server.location
    server.shutdown()
    announce(store, location, os.getpid())
    with pytest.raises(SettingError, match=r"does not answer: .*What to do: check that it still"):
        RunningQuery(str(tmp_path)).status()


def test_somebody_else_answers(serve: Serve, store: Store, tmp_path: Path) -> None:
    serve("sum")
    control = store.read_control()
    assert control is not None
    announce(store, control["location"], os.getpid(), "another")
    with pytest.raises(SettingError, match="refuses this control token"):
        RunningQuery(str(tmp_path)).status()


def test_another_users_query(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Store) -> None:
        raise PermissionError

    serve("sum")
    monkeypatch.setattr(Store, "read_control", refused)
    with pytest.raises(SettingError, match="cannot be read"):
        RunningQuery(str(tmp_path))


def test_status_says_where_the_time_goes(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve("sum")
    hosts = HostProgress("sum/0", 9, 9, 500, 2_000.0), HostProgress("sum/1", 9, 9, 100, 200.0)
    for number in range(3):
        query.progress.append(
            replace(
                epoch(number, []),
                started_ms=4_000 * number,
                read_ms=300.0,
                sink_ms=2_500.0,
                seal_ms=40.0,
                hosts=hosts,
                latency=Latency(4_000.0, 0.0, 0.0),
            )
        )
    assert run("status", str(tmp_path)) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "where the time goes (means of the newest 3 epochs)" in text
    assert "a row 4,000 ms: 1,500 ms before its epoch began, 2,500 ms in it" in text
    assert (
        "an epoch every 4,000 ms: 300 ms reading, 2,200 ms hosts and sink, 40 ms seal, 1,460"
        in text
    )
    assert "sum/0: works 2,000 ms on 500 records; the mean of sum is 1,100 ms" in text
    assert "rows waited 35 ms" in text
    assert "2,000 rows; backlog 77" in text
