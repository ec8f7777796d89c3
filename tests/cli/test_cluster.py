"""`penstock cluster`, as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from penstock.cli.cluster import cluster
from penstock.console.cluster import background
from penstock.console.cluster.cluster import Cluster, Shape, import_path
from penstock.console.cluster.reaper import MARK, end_all, marked
from penstock.errors import SettingError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    background.down(tmp_path / "cluster")


def call(verb: str, folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cluster, [verb, "--folder", str(folder), *words])


def test_a_cluster_comes_up_once_and_goes_down(folder: Path) -> None:
    up = call("up", folder, "--workers", "1", "--cores", "2", "--memory", "512m")
    assert up.exit_code == 0, up.output
    status = json.loads(call("status", folder, "--json").stdout)
    assert f'ps.session(master="{status["master"]}")' in up.stdout
    assert "1 worker with 2 task slots" in up.stdout
    assert set(status["daemons"]) == {"master", "worker-1"}
    assert status["missing"] == []
    for pid in status["daemons"].values():
        listening = [
            one.laddr.ip
            for one in psutil.Process(pid).net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}

    again = call("up", folder)
    assert isinstance(again.exception, SettingError)
    assert status["master"] in again.exception.message

    psutil.Process(status["daemons"]["master"]).kill()
    broken = call("status", folder)
    assert broken.exit_code == 1
    assert "master has ended" in broken.stdout

    down = call("down", folder)
    assert (down.exit_code, down.stdout) == (0, f"{status['master']} has ended.\n")
    assert marked(status["mark"]) == []
    assert (folder / "logs/master.log").exists()
    down = call("down", folder)
    assert (down.exit_code, down.stdout) == (0, "No cluster runs.\n")
    assert call("status", folder).exit_code == 1


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.cluster),
        pytest.param(signal.SIGKILL, marks=pytest.mark.cluster),
    ],
)
def test_an_up_that_is_broken_off_leaves_nothing(folder: Path, number: int) -> None:
    """Ctrl-C and SIGTERM end what was started; after a kill -9, `down` does."""
    command = [sys.executable, "-m", "penstock", "cluster", "up", "--folder", str(folder)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    state = folder / "cluster.json"
    until = time.monotonic() + 60
    while not (state.exists() and state.read_text() and "logs" in os.listdir(folder)):
        assert time.monotonic() < until
        time.sleep(0.02)
    mark = json.loads(state.read_text())["mark"]
    started.send_signal(signal.SIGSTOP)  # else it may be done before this test has looked
    while not marked(mark):
        assert time.monotonic() < until
        started.send_signal(signal.SIGCONT)
        time.sleep(0.02)
        started.send_signal(signal.SIGSTOP)
    started.send_signal(number)
    started.send_signal(signal.SIGCONT)
    output, _ = started.communicate(timeout=60)
    assert "Traceback" not in output
    if number == signal.SIGKILL:
        assert marked(mark)
        assert "has ended" in call("down", folder).stdout
    else:
        assert started.returncode == 128 + number
        assert not state.exists()
    assert marked(mark) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = call("up", tmp_path / "file")
    assert isinstance(refused.exception, SettingError)
    assert "--folder" in refused.exception.hint


OWNER = """
import sys, time
from pathlib import Path
from penstock.console.cluster.cluster import Shape, running_cluster
with running_cluster(Shape(workers=1), Path(sys.argv[1])) as cluster:
    print(cluster.mark, flush=True)
    time.sleep(600)
"""


@pytest.mark.cluster
def test_a_cluster_ends_with_its_owner(folder: Path) -> None:
    """Even if the owner is killed."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    mark = owner.stdout.readline().strip()
    try:
        processes = marked(mark)
        assert len(processes) == 2
        owner.kill()
        owner.communicate()
        _, left = psutil.wait_procs(processes, timeout=30)
        assert not left
    finally:
        end_all(mark)


def test_executors_find_what_this_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = import_path({"PYTHONPATH": "/somewhere"}).split(os.pathsep)
    assert paths[:2] == ["/somewhere", os.getcwd()]
    assert str(tmp_path) in paths
    assert not [place for place in paths if place.startswith(sys.prefix)]
    assert MARK not in os.environ


class Stranger(socketserver.BaseRequestHandler):
    """A server that does not speak HTTP."""

    def handle(self) -> None:
        self.request.recv(1)
        self.request.sendall(b"\x00\x00\x18\x04\r\n")


def test_a_stranger_on_the_port_of_the_master_is_not_taken_for_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, Shape())
    with socketserver.TCPServer(("127.0.0.1", cluster._ui_port), Stranger) as stranger:
        threading.Thread(target=stranger.handle_request).start()
        assert cluster.facts() == {}


def test_the_ports_of_a_master_are_not_ephemeral(tmp_path: Path) -> None:
    """Other processes could get an ephemeral port before the master has it, or while it restarts."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    cluster = Cluster(tmp_path, Shape())
    assert max(int(cluster.master.rpartition(":")[2]), cluster._ui_port) < first_ephemeral
