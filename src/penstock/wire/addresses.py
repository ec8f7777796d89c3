"""Addresses: where a server listens, and where others reach it.

An address is an IPv4 or IPv6 address without brackets, or a host name. A location is a server's URI. Only
this module converts between them.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import psutil
import pyarrow as pa

from penstock.errors import SettingError
from penstock.settings import Settings, port_range

_ANY = range(1)
"""Port range with only port 0: the system chooses the port."""

_PATIENCE_S = 10.0
"""Seconds that a task waits for a free port: the host that it replaces may still be ending."""
_LOOK_S = 0.2
"""Seconds between two attempts to find a free port."""
_PROBE_S = 0.5
"""Seconds that a machine has to answer a connection attempt."""

_TASK_ADDRESSES = ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "NM_HOST")
"""Environment variables with an executor's address, as Spark itself knows it.

They hold the address of the pod on Kubernetes, of the machine on any cluster, and of the node on YARN.
"""


def location(address: str, port: int, scheme: str = "grpc") -> str:
    """Return the URI of a server.

    >>> location("127.0.0.1", 4711), location("::1", 4711)
    ('grpc://127.0.0.1:4711', 'grpc://[::1]:4711')
    """
    return f"{scheme}://{_in_brackets(address)}:{port}"


def address_of(location: str) -> str:
    """Return the address in a location.

    >>> address_of("grpc://[::1]:4711"), address_of("grpc://worker-1:4711")
    ('::1', 'worker-1')
    """
    return urlsplit(location).hostname or ""


def nobody_listens(location: str) -> bool:
    """Tell whether the machine of a location refuses connections to it, so that its process is gone.

    False if the machine does not answer within half a second.
    """
    port = int(location.rsplit(":", 1)[1])
    try:
        socket.create_connection((address_of(location), port), _PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def is_here(address: str) -> bool:
    """Tell whether an address, or the address of a host name, belongs to this machine.

    >>> is_here("127.0.0.1"), is_here("::1"), is_here("localhost"), is_here("198.51.100.1")
    (True, True, True, False)
    """
    if address in ("localhost", socket.gethostname()):
        return True
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return any(_is_loopback(number) or number in own for number in _numeric(address))


@dataclass(frozen=True)
class Listen:
    """A server's listening address and ports, and the address at which others reach it."""

    address: str
    """Address at which others reach the server."""
    bind: str = ""
    """Address of this machine to bind; 0.0.0.0 or :: binds all of them, empty means `address`."""
    ports: range = _ANY
    """Ports of which the server takes a free one. Port 0 lets the system choose."""
    patience_s: float = 0.0
    """Seconds to wait for a free port if there is none: a server that is ending may still hold one."""

    def location(self, port: int) -> str:
        """Return the URI at which others reach the server."""
        return location(self.address, port)

    def open(self, serve: Callable[[str], object]) -> None:
        """Call `serve` with the URI to listen at, on the first port that is free.

        If another process takes that port at the same moment, `serve` fails, and the next port is tried.
        """
        at, until = self.bind or self.address, time.monotonic() + self.patience_s
        while (refused := self._try_all(at, serve)) is not None:
            if time.monotonic() >= until or not _is_taken(refused):
                break
            time.sleep(_LOOK_S)
        else:
            return
        reason = str(refused).strip().split("\n")[0][:300]
        raise SettingError(
            f"cannot listen on {_in_brackets(at)}:{_text(self.ports)}: {reason}",
            hint="use another port or a wider range (Settings.ports, Settings.driver_port), or 0 to let the "
            "system choose; change the address with spark.driver.bindAddress or SPARK_LOCAL_IP",
        ) from refused

    def _try_all(self, at: str, serve: Callable[[str], object]) -> Exception | None:
        """Try each port once. Return the error of the last one, or None if a port was free."""
        refused: Exception | None = None
        for port in _from_own_place(self.ports):
            try:
                _must_be_free(at, port)
                serve(location(at, port))
                return None
            except (OSError, pa.ArrowException) as failed:
                refused = failed
                if not _is_taken(failed):
                    break
        return refused


LOOPBACK = Listen("127.0.0.1")
"""Listen on loopback, for this machine only."""


def driver_listens(conf: Mapping[str, str], local: bool, ports: range) -> Listen:
    """Return where the driver listens: at `spark.driver.host`, bound to `spark.driver.bindAddress`.

    In local mode it listens on loopback.

    >>> driver_listens({"spark.driver.host": "192.0.2.1"}, local=True, ports=range(1)).address
    '127.0.0.1'
    """
    address = _plain(conf.get("spark.driver.host") or socket.gethostname())
    if local:
        return Listen("::1" if ":" in address else LOOPBACK.address, ports=ports)
    return _listen(address, _plain(conf.get("spark.driver.bindAddress", "")), ports)


def task_listens(
    environ: Mapping[str, str], driver: str, local: bool, settings: Settings
) -> Listen:
    """Return where a server in a Spark task listens: at its executor's address, if Spark knows one.

    Otherwise it listens at the address from which this machine reaches the driver. `driver` is a location.
    """
    ports = port_range(settings.ports)
    if local:
        return Listen(address_of(driver), "", ports, _PATIENCE_S)
    known = [environ[name] for name in _TASK_ADDRESSES if environ.get(name)]
    listen = _listen(_plain(known[0]) if known else _address_towards(driver), "", ports)
    return replace(listen, patience_s=_PATIENCE_S)


def _listen(address: str, bind: str, ports: range) -> Listen:
    """Bind the given address; without one, bind `address` if it is this machine's, or else all addresses."""
    if bind:
        return Listen(address, next(iter(_numeric(bind)), bind), ports)
    named = _numeric(address)
    # A machine often resolves its own name to loopback, which others cannot reach.
    loopback = address in ("localhost", *named)
    own = [number for number in named if is_here(number) and (loopback or not _is_loopback(number))]
    everywhere = "::" if named and all(":" in number for number in named) else "0.0.0.0"
    return Listen(address, own[0] if own else everywhere, ports)


def _address_towards(driver: str) -> str:
    """Return the address of this machine that packets to the driver leave from. Nothing is sent."""
    parts = urlsplit(driver)
    for family, kind, protocol, _, place in socket.getaddrinfo(
        parts.hostname, parts.port, type=socket.SOCK_DGRAM
    ):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(place)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return socket.gethostname()


def _numeric(address: str) -> list[str]:
    """Resolve a host name to its addresses, IPv4 first. An address resolves to itself."""
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        pass
    try:
        resolved = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    numbers = {str(place[0]) for *_, place in resolved}
    return sorted(numbers, key=lambda number: (":" in number, number))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _must_be_free(address: str, port: int) -> None:
    """Raise OSError with the reason if nobody can listen there. gRPC would be slower, and only log it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    socket.create_server((address, port), family=family).close()


def _is_taken(failed: Exception) -> bool:
    """Tell whether another port may work. gRPC does not say why it fails, so its errors count as yes."""
    return not isinstance(failed, OSError) or failed.errno == errno.EADDRINUSE


def _from_own_place(ports: range) -> Iterator[int]:
    """Yield all ports of a range, starting at one that depends on the process id.

    So a new process does not take the port of one that has just died, which others may still call.
    """
    for step in range(len(ports)):
        yield ports[(os.getpid() + step) % len(ports)]


def _text(ports: range) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _plain(address: str) -> str:
    return address.removeprefix("[").removesuffix("]")


def _in_brackets(address: str) -> str:
    return f"[{address}]" if ":" in address else address
