"""Addresses of servers: names, IPv6, and ports that are taken."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from subprocess import PIPE, Popen
from threading import Timer

import psutil
import pytest

from penstock.errors import SettingError
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.addresses import (
    LOOPBACK,
    Listen,
    address_of,
    driver_listens,
    is_here,
    location,
    task_listens,
)
from penstock.wire.flight import Endpoint, TokenServer

NOT_HERE = "198.51.100.1"
DRIVER = "grpc://127.0.0.1:4711"


def waiting(listen: Listen) -> Listen:
    """Return the same for a task, which waits for a free port."""
    return replace(listen, patience_s=10.0)


def answers(server: TokenServer) -> bool:
    with closing(Endpoint(server.location, Access("t"))) as endpoint:
        endpoint.greet(5_000)
    return True


def bound(server: TokenServer) -> list[str]:
    """Return the addresses on which this process listens at the server's port."""
    sockets = psutil.Process().net_connections("tcp")
    own = [s.laddr.ip for s in sockets if s.laddr and s.laddr.port == server.port]
    return sorted(address.removeprefix("::ffff:") for address in own)  # gRPC binds IPv4 that way


@pytest.fixture(scope="module")
def own_address() -> str:
    """An address of this machine that is not loopback."""
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    return addresses[0] if addresses else pytest.skip("this machine has only a loopback address")


@pytest.fixture
def free_ports() -> Iterator[range]:
    """Four consecutive free ports."""
    for first in range(20_000 + os.getpid() % 1000 * 4, 32_000, 4):
        with ExitStack() as stack:
            try:
                for port in range(first, first + 4):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        yield range(first, first + 4)
        return


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "worker-1.example", "2001:db8::17"])
def test_an_address_comes_back_out_of_its_location(address: str) -> None:
    assert address_of(location(address, 4711)) == address


def test_a_server_answers_on_ipv6() -> None:
    with TokenServer(Listen("::1"), Access("t")) as server:
        assert server.location == f"grpc://[::1]:{server.port}"
        assert answers(server)
        assert set(bound(server)) == {"::1"}  # the connection of `answers` may still be there
        assert is_here(address_of(server.location))


def test_local_mode_stays_on_loopback(own_address: str) -> None:
    conf = {"spark.driver.host": own_address, "spark.driver.bindAddress": "0.0.0.0"}
    driver = driver_listens(conf, True, range(1))
    assert driver == LOOPBACK
    environ = {"SPARK_LOCAL_IP": own_address}
    assert task_listens(environ, driver.location(1), True, Settings()) == waiting(LOOPBACK)
    with TokenServer(driver, Access("t")) as server:
        assert bound(server) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["::1", "[::1]", "[2001:db8::17]"])
def test_local_mode_of_ipv6_stays_on_its_loopback(host: str) -> None:
    driver = driver_listens({"spark.driver.host": host}, True, range(1))
    assert driver == Listen("::1")
    assert task_listens({}, driver.location(1), True, Settings()) == waiting(Listen("::1"))


def test_the_driver_is_where_spark_says(own_address: str) -> None:
    only = driver_listens({"spark.driver.host": own_address}, False, range(1))
    assert only == Listen(own_address, own_address)
    # The address of a service in front of the driver's pod, or of the machine of its container.
    behind = driver_listens({"spark.driver.host": NOT_HERE}, False, range(1))
    assert behind == Listen(NOT_HERE, "0.0.0.0")
    conf = {"spark.driver.host": "driver.svc.invalid", "spark.driver.bindAddress": "localhost"}
    assert driver_listens(conf, False, range(7, 9)) == Listen(
        "driver.svc.invalid", "127.0.0.1", range(7, 9)
    )
    assert driver_listens({"spark.driver.host": "[2001:db8::17]"}, False, range(1)).bind == "::"


def test_only_the_given_address_is_bound(own_address: str) -> None:
    with TokenServer(Listen(own_address), Access("t")) as server:
        assert bound(server) == [own_address]
        assert answers(server)
    with TokenServer(Listen("localhost", "0.0.0.0"), Access("t")) as server:
        assert server.location == f"grpc://localhost:{server.port}"
        assert answers(server)


def test_a_task_is_where_its_executor_is(own_address: str) -> None:
    def address(driver: str = DRIVER, **environ: str) -> str:
        return task_listens(environ, driver, False, Settings()).address

    assert address(SPARK_EXECUTOR_POD_IP="10.0.0.7", SPARK_LOCAL_IP="127.0.0.1") == "10.0.0.7"
    assert address(SPARK_LOCAL_HOSTNAME="worker-1", SPARK_LOCAL_IP="10.0.0.7") == "worker-1"
    assert address(SPARK_LOCAL_IP="::1") == address(SPARK_LOCAL_IP="[::1]") == "::1"
    assert address(NM_HOST="node-1.example") == "node-1.example"
    # Without a variable it is the address from which this machine reaches the driver.
    assert address() == "127.0.0.1"
    assert address("grpc://[::1]:4711") == "::1"
    assert address(f"grpc://{own_address}:4711", SPARK_LOCAL_IP="") == own_address


def test_a_name_that_is_loopback_only_here_is_bound_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    listen = task_listens({"SPARK_LOCAL_HOSTNAME": "laptop"}, DRIVER, False, Settings())
    assert listen == waiting(Listen("laptop", "0.0.0.0"))


def test_a_range_of_ports_is_taken_one_by_one(free_ports: range) -> None:
    listen = Listen("127.0.0.1", ports=free_ports)
    with ExitStack() as stack:
        stack.enter_context(socket.create_server(("127.0.0.1", free_ports[1])))
        servers = [stack.enter_context(TokenServer(listen, Access("t"))) for _ in range(3)]
        assert {s.port for s in servers} == set(free_ports) - {free_ports[1]}
        assert all(answers(server) for server in servers)
        text = f"{free_ports[0]}-{free_ports[-1]}"
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{text}") as refused:
            TokenServer(listen, Access("t"))
        assert "Settings.ports" in refused.value.hint
    with TokenServer(listen, Access("t")) as again:
        assert again.port in free_ports


def test_a_task_waits_for_the_port_of_a_server_that_is_ending(free_ports: range) -> None:
    taken = [socket.create_server(("127.0.0.1", port)) for port in free_ports]
    listen = Listen("127.0.0.1", ports=free_ports, patience_s=30)
    Timer(0.3, taken[2].close).start()
    with TokenServer(listen, Access("t")) as server:
        assert server.port == free_ports[2]
    for listener in taken:
        listener.close()


RACER = """
import sys
from penstock.wire.addresses import Listen
from penstock.wire.access import Access
from penstock.wire.flight import TokenServer
print("ready", flush=True)
sys.stdin.readline()
first = int(sys.argv[1])
with TokenServer(Listen("127.0.0.1", ports=range(first, first + 4)), Access("t")) as server:
    print(server.port, flush=True)
    sys.stdin.readline()
"""


def test_processes_that_race_for_ports_all_get_one(free_ports: range) -> None:
    command = [sys.executable, "-c", RACER, str(free_ports[0])]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True))
            for _ in free_ports
        ]
        pipes = [(racer.stdin, racer.stdout) for racer in racers if racer.stdin and racer.stdout]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 4
        for go, _ in pipes:
            print("go", file=go, flush=True)
        assert {int(out.readline()) for _, out in pipes} == set(free_ports)
        for go, _ in pipes:
            print("end", file=go, flush=True)


def test_an_address_of_another_machine_is_refused_with_the_reason() -> None:
    with pytest.raises(SettingError, match=rf"cannot listen on {NOT_HERE}:0: .*ssign") as refused:
        TokenServer(Listen(NOT_HERE), Access("t"))
    assert "spark.driver.bindAddress" in refused.value.hint


@pytest.mark.parametrize("text", ["", "a", "5-4", "0-4", "70000", "1-2-3", "-5", "40000-"])
def test_an_invalid_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="not a port or a range"):
        Settings(ports=text)


def test_host_names_are_resolved() -> None:
    assert is_here(socket.gethostname())
    assert not is_here("nobody.invalid")
