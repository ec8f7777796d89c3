"""Access to endpoints: by token, and by certificate."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from penstock.errors import HostLostError, ProtocolError, SettingError
from penstock.settings import Settings, Tls
from penstock.wire.access import Access, TokenCheck
from penstock.wire.addresses import LOOPBACK, Listen
from penstock.wire.flight import PING, Endpoint, TokenServer
from tests.testing.certificates import Authority
from tests.wire.raw_http2 import RawRequest

RUN, CONTROL = "the-token-of-the-run", "the-token-of-control"
RIGHT = b"Bearer " + RUN.encode()
AUTHORIZATION = b"authorization"
PING_MESSAGE = b"\x0a\x04ping"
"""The action `ping` in Flight's encoding."""
OK = b"grpc-status\x010"


class Server(TokenServer):
    """A server that records the calls that reach its own code."""

    def __init__(self, access: Access, listen: Listen = LOOPBACK) -> None:
        super().__init__(listen, access, CONTROL)
        self.calls: list[str] = []
        self.actions = {
            "order": lambda facts: self.calls.append("order"),
            "control_order": lambda facts: self.calls.append("control_order"),
        }

    def do_exchange(self, *_: Any) -> None:
        self.calls.append("exchange")

    def do_get(self, *_: Any) -> None:
        self.calls.append("get")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Access(RUN, most_bytes=1_000)) as made:
        yield made
        with closing(Endpoint(made.location, Access(RUN))) as endpoint:
            endpoint.call("order", 10_000)  # it still works after each test


HEADERS: dict[str, Sequence[tuple[bytes, bytes]]] = {
    "none": (),
    "wrong": ((AUTHORIZATION, b"Bearer the-token-of-the-ruN"),),
    "empty": ((AUTHORIZATION, b""),),
    "beginning": ((AUTHORIZATION, RIGHT[:-1]),),
    "longer": ((AUTHORIZATION, RIGHT + b"x"),),
    "bare": ((AUTHORIZATION, RUN.encode()),),
    "not ascii": ((AUTHORIZATION, "Bearer é".encode()),),
    "not text": ((AUTHORIZATION, b"Bearer \xff\xfe"),),
    "zero": ((AUTHORIZATION, RIGHT + b"\x00"),),
    "two": ((AUTHORIZATION, RIGHT), (AUTHORIZATION, RIGHT)),
    "wrong and right": ((AUTHORIZATION, b"Bearer x"), (AUTHORIZATION, RIGHT)),
    "right and wrong": ((AUTHORIZATION, RIGHT), (AUTHORIZATION, b"Bearer x")),
    "binary": ((b"authorization-bin", RIGHT),),
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
def test_a_request_without_the_token_is_refused(
    server: Server, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    with closing(RawRequest(server.port, headers)) as request:
        request.send(PING_MESSAGE)
        answer = request.answer()
    assert b"grpc-status" in answer
    assert OK not in answer


def test_the_same_request_with_the_token_is_answered(server: Server) -> None:
    with closing(RawRequest(server.port, [(AUTHORIZATION, RIGHT)])) as request:
        request.send(PING_MESSAGE)
        assert OK in request.answer()


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 20, b"\x16\x03\x01\x00\xff" * 99],
    ids=["http 1", "noise", "tls"],
)
def test_garbage_is_refused(server: Server, garbage: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as line:
        line.sendall(garbage)
        with suppress(ConnectionError):
            while line.recv(4_096):
                pass


def _calls(client: fl.FlightClient, options: fl.FlightCallOptions) -> list[Callable[[], object]]:
    command = fl.FlightDescriptor.for_command(b"{}")
    schema = pa.schema([("v", pa.int64())])

    def exchange() -> None:
        writer, reader = client.do_exchange(command, options)
        with suppress(Exception), writer:
            writer.begin(schema)
        reader.read_chunk()

    def put() -> None:
        writer, _ = client.do_put(command, schema, options)
        writer.close()

    return [
        lambda: list(client.do_action(fl.Action("order", b"{}"), options)),
        lambda: list(client.do_action(fl.Action("control_order", b"{}"), options)),
        lambda: list(client.do_action(fl.Action(PING, b"{}"), options)),
        lambda: list(client.list_actions(options)),
        lambda: list(client.list_flights(options=options)),
        lambda: client.get_flight_info(command, options),
        lambda: client.get_schema(command, options),
        lambda: client.do_get(fl.Ticket(b"{}"), options).read_all(),
        exchange,
        put,
    ]


@pytest.mark.parametrize("token", [None, "wrong"])
def test_no_method_of_flight_is_open(server: Server, token: str | None) -> None:
    headers = [] if token is None else Access(token).headers
    options = fl.FlightCallOptions(timeout=10, headers=headers)
    with fl.FlightClient(server.location) as client:
        for call in _calls(client, options):
            with pytest.raises((fl.FlightError, OSError), match="asks for the run's token"):
                call()
    assert server.calls == []


def test_each_token_opens_its_own_actions(server: Server) -> None:
    opens = {RUN: "order", CONTROL: "control_order"}
    for token, own in opens.items():
        with closing(Endpoint(server.location, Access(token))) as endpoint:
            endpoint.call(PING, 10_000)
            for action in opens.values():
                if action == own:
                    endpoint.call(action, 10_000)
                else:
                    with pytest.raises(HostLostError, match=f"does not open the action {action}"):
                        endpoint.call(action, 10_000)
    assert server.calls == ["order", "control_order"]


def test_the_control_token_opens_no_stream(server: Server) -> None:
    options = fl.FlightCallOptions(timeout=10, headers=Access(CONTROL).headers)
    with fl.FlightClient(server.location) as client:
        for call in _calls(client, options)[-3:]:
            with pytest.raises(fl.FlightUnauthorizedError):
                call()
    assert server.calls == []


def test_an_empty_control_token_opens_nothing() -> None:
    with TokenServer(LOOPBACK, Access(RUN)) as without, fl.FlightClient(without.location) as client:
        options = fl.FlightCallOptions(headers=[(AUTHORIZATION, b"Bearer ")])
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(client.do_action(fl.Action(PING, b""), options))


def test_a_body_has_a_limit(server: Server) -> None:
    with closing(Endpoint(server.location, Access(RUN))) as endpoint:
        with pytest.raises(ProtocolError, match=r"at most 1000 are allowed.*request_mb"):
            endpoint.call("order", 10_000, text="x" * 1_000)
        endpoint.call("order", 10_000, text="x" * 900)


def test_a_body_that_is_very_deep_is_refused() -> None:
    with Server(Access(RUN)) as server, fl.FlightClient(server.location) as client:
        options = fl.FlightCallOptions(headers=Access(RUN).headers)
        body = b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
        with pytest.raises(fl.FlightServerError, match="ProtocolError"):
            list(client.do_action(fl.Action("order", body), options))
        assert server.calls == []


def test_refused_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    check = TokenCheck(RUN, None, lambda: now[0])
    with caplog.at_level(logging.WARNING, "penstock.access"):
        for at in (0, 1, 2, 59, 61, 62):
            now[0] = at
            with pytest.raises(fl.FlightUnauthenticatedError):
                check.start_call(None, {})
    assert [record.getMessage().split()[0] for record in caplog.records] == ["1", "4"]


def test_a_token_is_not_shown() -> None:
    access = Access(RUN, Tls("c", "k", "a"))
    assert RUN not in repr(access)
    assert RUN not in str(replace(access, most_bytes=1))


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


def _ping(location: str, tls: Tls | None) -> None:
    with closing(Endpoint(location, Access(RUN, tls))) as endpoint:
        endpoint.call(PING, 5_000)


def test_tls_by_address_and_by_a_name_of_all(authority: Authority) -> None:
    by_address, by_name = authority.tls("IP:127.0.0.1"), authority.tls("DNS:all", name="all")
    for tls in (by_address, by_name):
        with Server(Access(RUN, tls)) as server:
            assert server.location.startswith("grpc+tls://")
            _ping(server.location, tls)
    with Server(Access(RUN, by_name)) as server, pytest.raises(HostLostError):
        _ping(server.location, by_address)  # the certificate does not name the address


def test_strangers_get_no_tls_connection(authority: Authority, other: Authority) -> None:
    own, foreign = authority.tls("IP:127.0.0.1"), other.tls("IP:127.0.0.1")
    strangers: list[Tls | None] = [
        foreign,
        replace(
            foreign, authority=own.authority
        ),  # trusts the server, but has a foreign certificate
        replace(own, mutual=False),  # has no certificate
        replace(own, authority=foreign.authority),  # does not trust the server
    ]
    with Server(Access(RUN, own)) as server:
        for tls in strangers:
            with pytest.raises(HostLostError):
                _ping(server.location, tls)
        with pytest.raises(HostLostError):
            _ping(server.location.replace("grpc+tls", "grpc"), None)
        _ping(server.location, own)


def test_with_certificates_of_servers_only(authority: Authority, other: Authority) -> None:
    tls = authority.tls("IP:127.0.0.1", mutual=False)
    with Server(Access(RUN, tls)) as server:
        _ping(server.location, tls)
        _ping(server.location, Tls("", "", tls.authority, mutual=False))  # as `penstock ctl` may
        with pytest.raises(HostLostError):
            _ping(server.location, other.tls("IP:127.0.0.1", mutual=False))


def test_missing_tls_files(tmp_path: Path) -> None:
    missing = Tls(str(tmp_path / "a.crt"), str(tmp_path / "a.key"), str(tmp_path / "ca.crt"))
    for attempt in (
        lambda: Server(Access(RUN, missing)),
        lambda: _ping("grpc+tls://[::1]:1", missing),
    ):
        with pytest.raises(SettingError, match=r"cannot be read on this machine.*on every machine"):
            attempt()


def test_settings_of_access() -> None:
    access = Access.new(Settings(request_mb=2))
    assert access.most_bytes == 2 << 20
    assert len(access.token) == 32
    assert access.token != Access.new(Settings()).token
    with pytest.raises(SettingError, match="request_mb"):
        Settings(request_mb=0)


# How much Flight receives before the token is checked; SECURITY.md has the figures

_SERVE = """
import sys
from penstock.settings import Tls
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import TokenServer
tls = Tls(*sys.argv[1:4]) if len(sys.argv) > 1 else None
with TokenServer(LOOPBACK, Access("the-token-of-the-run", tls)) as server:
    print(server.location, flush=True)
    sys.stdin.readline()
"""


class _Apart:
    """A server in its own process, whose memory is measured all the time."""

    def __init__(self, tls: Tls | None) -> None:
        files = () if tls is None else (tls.certificate, tls.key, tls.authority)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None
        self.location = self._process.stdout.readline().strip()
        self._memory = psutil.Process(self._process.pid)
        self._before = self.peak = self._memory.memory_info().rss
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            self.peak = max(self.peak, self._memory.memory_info().rss)

    @property
    def grown(self) -> int:
        """Largest growth of its memory so far, in bytes."""
        return self.peak - self._before

    def __enter__(self) -> _Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self._process.communicate("\n", timeout=30)


_LARGE = 200_000_000


def test_a_stream_without_a_token_is_not_received() -> None:
    with _Apart(None) as server, fl.FlightClient(server.location) as client:

        def stream() -> None:
            writer, _ = client.do_exchange(fl.FlightDescriptor.for_command(b"{}"))
            writer.begin(pa.schema([("v", pa.binary())]))
            while True:
                writer.write_metadata(bytes(_LARGE))

        with pytest.raises((fl.FlightError, OSError)):
            stream()
        assert server.grown < _LARGE / 4


def test_with_client_certificates_a_stranger_sends_nothing_at_all(
    authority: Authority,
) -> None:
    tls = authority.tls("IP:127.0.0.1")
    with _Apart(tls) as server:
        stranger = Access("x", replace(tls, mutual=False))
        options = [("grpc.max_send_message_length", -1)]
        with (
            fl.FlightClient(
                server.location, generic_options=options, **stranger.client_options()
            ) as client,
            pytest.raises(fl.FlightError),
        ):
            list(client.do_action(fl.Action(PING, bytes(_LARGE)), fl.FlightCallOptions(timeout=20)))
        assert server.grown < _LARGE / 4
        _ping(server.location, tls)
