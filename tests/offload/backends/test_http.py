"""Burst workers over HTTP: signatures, refusals, and servers that fail in all ways."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.offload.backends.backend import WorkerFailed, invoker_at
from penstock.offload.backends.http.backend import HttpFunctions, HttpInvoker
from penstock.offload.backends.http.messages import answer_headers
from penstock.offload.backends.messages import WorkerAnswer
from penstock.offload.backends.package import package
from penstock.wire.access import Access
from tests.offload.backends.flows import counting, doubled, request, slow_or_wrong
from tests.offload.backends.http_platform import ANYHOW, Chances, Platform
from tests.offload.backends.waiting import until
from tests.offload.in_process import Helped
from tests.testing.certificates import Authority
from tests.trials.cluster import cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(120)

FLOW = counting(slow_or_wrong)
KEY = "a key"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(FLOW, KEY, at_most=3) as platform:
        yield platform


@contextmanager
def invoker(url: str, key: str = KEY, **settings: Any) -> Iterator[HttpInvoker]:
    made = HttpFunctions(url, key, **settings).connect()
    yield made
    made.close()


def asked(invoker: HttpInvoker, timeout_ms: int = 10_000) -> WorkerAnswer:
    sent = request(FLOW, ("a", 1), ("a", 2))
    return WorkerAnswer.from_bytes(invoker.invoke(sent.to_bytes(), timeout_ms), sent)


@pytest.mark.parametrize(
    ("does", "failure"),
    [
        ("busy", "throttled"),
        ("fail", "failed"),
        ("garbage", "failed"),
        ("half", "failed"),
        ("gone", "failed"),
        ("late", "timeout"),
        ("hang", "timeout"),
    ],
)
def test_whatever_a_server_does_is_a_failure_and_the_next_request_is_answered(
    platform: Platform, does: str, failure: str
) -> None:
    with invoker(platform.url) as there:
        platform.chances = {does: 1}
        began = time.monotonic()
        with pytest.raises(WorkerFailed) as raised:
            asked(there, timeout_ms=500)
        assert raised.value.failure == failure
        assert time.monotonic() - began < 2.5
        platform.chances = {"answer": 1}
        assert asked(there).batches


def test_an_earlier_answer_is_not_taken(platform: Platform) -> None:
    platform.chances = {"answer": 1}
    with invoker(platform.url) as there:
        asked(there)
        platform.chances = {"again": 1}
        with pytest.raises(WorkerFailed, match="wrong signature"):
            asked(there)
    platform.chances = {"answer": 1}


def test_only_those_who_know_the_key_are_answered(platform: Platform) -> None:
    platform.chances = {"answer": 1}
    for wrong in ("", "another key"):
        with (
            invoker(platform.url, wrong) as there,
            pytest.raises(WorkerFailed, match="answered 401"),
        ):
            asked(there)
    with invoker(platform.url, headers=lambda: {"authorization": "Bearer of the platform"}) as here:
        assert asked(here).batches


def test_functions_with_another_flow_are_refused(platform: Platform) -> None:
    platform.chances = {"answer": 1}
    with pytest.raises(SettingError, match="have another flow"):
        HttpFunctions(platform.url, KEY).start(counting(doubled), "run", Access("token"))


def test_requests_and_answers_that_are_too_large_are_refused(platform: Platform) -> None:
    platform.chances = {"answer": 1}
    some: tuple[dict[str, Any], ...] = ({"request_limit": 10}, {"answer_limit": 10})
    for limits in some:
        with invoker(platform.url, **limits) as there, pytest.raises(WorkerFailed) as raised:
            asked(there)
        assert raised.value.failure == "too_large"


def test_a_server_is_trusted_if_its_authority_is(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "authority").tls("IP:127.0.0.1")
    with Platform(FLOW, KEY, at_most=1, tls=tls) as platform:
        with invoker(platform.url, ca=tls.authority) as there:
            assert asked(there).batches
        with invoker(platform.url) as stranger, pytest.raises(WorkerFailed, match="certificate"):
            asked(stranger)


def test_wrong_urls_are_refused() -> None:
    for url in ("bursts.example.com", "ftp://bursts.example.com", "https://"):
        with pytest.raises(SettingError, match="is not the URL of functions"):
            HttpFunctions(url)


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection what HTTP does not allow."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                talk(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def read_request(connection: socket.socket) -> tuple[dict[str, str], bytes]:
    """The headers and the body of the next request; no headers if there is none."""
    with connection.makefile("rb", buffering=0) as stream:
        lines = list(iter(lambda: stream.readline().decode().strip(), ""))
        pairs = (line.split(": ", 1) for line in lines[1:])
        headers = {name.lower(): text for name, text in pairs}
        body = b""
        while headers and len(body) < int(headers["content-length"]):
            body += stream.read(int(headers["content-length"]) - len(body)) or b""
    return headers, body


def test_the_second_of_two_answers_is_not_taken_for_the_answer_to_the_next_request() -> None:
    def twice(connection: socket.socket) -> None:
        while headers := read_request(connection)[0]:
            body = f"answer to {headers['penstock-signature']}".encode()
            signed = answer_headers(KEY, headers, body, "mark", 1.0, cold=False)
            head = "".join(f"{name}: {text}\r\n" for name, text in signed.items())
            reply = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body
            connection.sendall(reply + reply)

    with raw_server(twice) as url, invoker(url) as there:
        for number in range(5):
            answer = there.invoke(f"rows {number}".encode(), 5_000)
            assert answer.startswith(b"answer to ")
        assert there.taken().failed == 0


def test_an_answer_that_trickles_does_not_outlast_the_deadline_for_long() -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not over.wait(0.1):
            connection.sendall(b".")

    with raw_server(trickle) as url, invoker(url) as there:
        began = time.monotonic()
        with pytest.raises(WorkerFailed) as raised:
            there.invoke(b"rows", 400)
        over.set()
    assert raised.value.failure == "timeout"
    assert time.monotonic() - began < 1.0


def some_rows(seed: int) -> list[Row]:
    pick = random.Random(seed)
    return [{"k": f"k{pick.randrange(50)}", "v": pick.randrange(9)} for _ in range(300)]


@pytest.mark.parametrize("chances", [{"answer": 1}, ANYHOW])
def test_rows_count_once_whatever_the_platform_does(tmp_path: Path, chances: Chances) -> None:
    totals: dict[str, int] = {}
    answered = returned = 0
    with Platform(FLOW, KEY, at_most=4, seed=7) as platform:
        functions = HttpFunctions(platform.url, KEY, at_most=4)
        access = Access("token", functions=functions)
        started = functions.start(FLOW, "run", access)
        platform.chances = chances
        by = Helped(FLOW, started.reach, seed=4, deadline_ms=300)
        by.chance = 1.0
        with cluster(FLOW, str(tmp_path), hosts=2, helped=by, access=access) as on:
            for number in range(10):
                parts = [some_rows(2 * number), some_rows(2 * number + 1)]
                on.run(parts)
                for row in (row for part in parts for row in part):
                    totals[row["k"]] = totals.get(row["k"], 0) + 2 * row["v"]
                touched = {row["k"] for part in parts for row in part}
                output = {row["k"]: row["total"] for row in on.sink[number]}
                assert output == {key: totals[key] for key in touched}
                for entry in (one for seen in on.registry.seen() for one in seen.offloaded):
                    returned += entry.returned
                    answered += entry.records
        invoker_at(started.reach, access).close()
        started.stop()
    assert answered > 0
    if chances is ANYHOW:
        assert returned > 0
        assert len(platform.did) > 5


def test_rows_count_once_when_the_server_dies_in_the_middle(tmp_path: Path) -> None:
    totals: dict[str, int] = {}
    platform = Platform(FLOW, KEY, at_most=4)
    with platform:
        functions = HttpFunctions(platform.url, KEY, at_most=4)
        access = Access("token", functions=functions)
        started = functions.start(FLOW, "run", access)
        by = Helped(FLOW, started.reach, seed=4, deadline_ms=1_000)
        by.chance = 1.0
        with cluster(FLOW, str(tmp_path), hosts=1, helped=by, access=access) as on:
            for number in range(4):
                if number == 2:
                    platform.chances = {"hang": 1}
                    dies = threading.Thread(target=lambda: _end_during_work(platform))
                    dies.start()
                rows = some_rows(number)
                on.run([rows])
                for row in rows:
                    totals[row["k"]] = totals.get(row["k"], 0) + 2 * row["v"]
                output = {row["k"]: row["total"] for row in on.sink[number]}
                assert output == {key: totals[key] for key in output}
            dies.join()
        invoker_at(started.reach, access).close()
        started.stop()


def _end_during_work(platform: Platform) -> None:
    until(lambda: platform.did["hang"] > 0)
    platform.end()


def test_the_package_serves_what_couriers_ask(tmp_path: Path) -> None:
    """The archive of `penstock functions package --for http`, run by uvicorn as its Dockerfile does."""
    packed = package(counting(doubled), tmp_path / "f.zip", [doubled.__module__], platform="http")
    with zipfile.ZipFile(packed.path) as archive:
        archive.extractall(tmp_path / "app")
        assert b"uvicorn --factory" in archive.read("Dockerfile")
        assert b"starlette==" in archive.read("requirements.txt")
    listening = socket.create_server(("127.0.0.1", 0))
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "--factory", "--fd", str(listening.fileno())),
            "penstock.offload.backends.http.app:app",
        ],
        cwd=tmp_path / "app",
        env=os.environ | {"PENSTOCK_KEY": KEY, "PYTHONPATH": str(tmp_path / "app")},
        pass_fds=[listening.fileno()],
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        started = HttpFunctions(url, KEY).start(counting(doubled), "run", Access("token"))
        sent = request(counting(doubled), ("a", 1), ("a", 2))
        with invoker(url) as there:
            body = there.invoke(sent.to_bytes(), 30_000)
        [partials] = WorkerAnswer.from_bytes(body, sent).batches
        assert partials.column("sum(v)").to_pylist() == [6]
        assert started.used().cold_starts == 1
        started.stop()
    finally:
        server.terminate()
        server.wait()
        listening.close()


def test_an_app_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.offload.backends.http.app import app

    monkeypatch.delenv("PENSTOCK_KEY", raising=False)
    with pytest.raises(SettingError, match="PENSTOCK_KEY is not set"):
        app()
