"""Addresses: where a server listens, where others reach it, and how both are written.

An address is an IPv4 or IPv6 address, without brackets, or a name. A location is a server's URI. Only this
module makes one of the other.
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
"""Ports: the one that the system chooses."""

_PATIENCE_S = 10.0
"""For a task: the host that it takes the place of may still be ending."""
_LOOK_S = 0.2
_PROBE_S = 0.5
"""Seconds that a machine has to say whether anybody listens."""

_TASK_ADDRESSES = ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "NM_HOST")
"""Variables of an executor's process that name its address, as Spark itself has been told it: of the pod on
Kubernetes, of the machine on any cluster, of the node on YARN."""


def location(address: str, port: int, scheme: str = "grpc") -> str:
    """The URI of a server.

    >>> location("127.0.0.1", 4711), location("::1", 4711)
    ('grpc://127.0.0.1:4711', 'grpc://[::1]:4711')
    """
    return f"{scheme}://{_in_brackets(address)}:{port}"


def address_of(location: str) -> str:
    """The address in a location.

    >>> address_of("grpc://[::1]:4711"), address_of("grpc://worker-1:4711")
    ('::1', 'worker-1')
    """
    return urlsplit(location).hostname or ""


def nobody_listens(location: str) -> bool:
    """Whether a machine that answers says that no process serves this location any more. One that does
    not answer in half a second has said nothing."""
    port = int(location.rsplit(":", 1)[1])
    try:
        socket.create_connection((address_of(location), port), _PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def is_here(address: str) -> bool:
    """Whether an address, or what a name stands for, is this machine's.

    >>> is_here("127.0.0.1"), is_here("::1"), is_here("localhost"), is_here("198.51.100.1")
    (True, True, True, False)
    """
    if address in ("localhost", socket.gethostname()):
        return True
    own = {found.address for some in psutil.net_if_addrs().values() for found in some}
    return any(_is_loopback(one) or one in own for one in _numeric(address))


@dataclass(frozen=True)
class Listen:
    """Where a server listens, and the address at which others reach it."""

    address: str
    """What others are told."""
    bind: str = ""
    """An address of this machine, or 0.0.0.0 or ::, which is all of them. Empty: the one that others are
    told."""
    ports: range = _ANY
    """The ports it may take: one that is free, and no other. 0 lets the system choose."""
    patience_s: float = 0.0
    """Seconds to look again for a free port if there is none: a server that is ending may still have one."""

    def location(self, port: int) -> str:
        """The URI that others are told."""
        return location(self.address, port)

    def open(self, serve: Callable[[str], object]) -> None:
        """Call `serve` with the URI to listen at, on the first port that is free.

        If another process takes that port in the same moment, `serve` fails, and the next one is tried.
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
            hint="choose another port or a wider range (Settings.ports, Settings.driver_port), or 0 to let "
            "the system choose one; the address is Spark's (spark.driver.bindAddress, SPARK_LOCAL_IP)",
        ) from refused

    def _try_all(self, at: str, serve: Callable[[str], object]) -> Exception | None:
        """Try each port once; returns why the last one was refused, or None if one was not."""
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
"""For this machine alone."""


def driver_listens(conf: Mapping[str, str], local: bool, ports: range) -> Listen:
    """How the driver is to listen, by Spark's own settings: at `spark.driver.host`, bound to
    `spark.driver.bindAddress`.

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
    """How a server in a Spark task is to listen: at its executor's address, as far as Spark has been told
    one, or else at the address from which this machine reaches the driver, who is at this location."""
    ports = port_range(settings.ports)
    if local:
        return Listen(address_of(driver), "", ports, _PATIENCE_S)
    told = [environ[name] for name in _TASK_ADDRESSES if environ.get(name)]
    listen = _listen(_plain(told[0]) if told else _address_towards(driver), "", ports)
    return replace(listen, patience_s=_PATIENCE_S)


def _listen(address: str, bind: str, ports: range) -> Listen:
    """Binds what is asked for; else the address itself, where that is this machine's; else all of them."""
    if bind:
        return Listen(address, next(iter(_numeric(bind)), bind), ports)
    named = _numeric(address)
    # A machine's own name is often a loopback address in its own eyes, and only there.
    loopback = address in ("localhost", *named)
    own = [one for one in named if is_here(one) and (loopback or not _is_loopback(one))]
    everywhere = "::" if named and all(":" in one for one in named) else "0.0.0.0"
    return Listen(address, own[0] if own else everywhere, ports)


def _address_towards(driver: str) -> str:
    """The address of this machine that packets to the driver leave from. Nothing is sent."""
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
    """The addresses that a name stands for, IPv4 first; of an address, itself."""
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(place[0]) for *_, place in found}, key=lambda one: (":" in one, one))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _must_be_free(address: str, port: int) -> None:
    """Raises OSError if nobody can listen there: sooner than gRPC, with the reason, and without its log."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    socket.create_server((address, port), family=family).close()


def _is_taken(failed: Exception) -> bool:
    """Whether this is about a port, of which another may do better; gRPC does not say why it fails."""
    return not isinstance(failed, OSError) or failed.errno == errno.EADDRINUSE


def _from_own_place(ports: range) -> Iterator[int]:
    """All ports of a range, from a place that depends on the process: it does not take the port of one
    that has just died, which others may still believe to be there."""
    for step in range(len(ports)):
        yield ports[(os.getpid() + step) % len(ports)]


def _text(ports: range) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _plain(address: str) -> str:
    return address.removeprefix("[").removesuffix("]")


def _in_brackets(address: str) -> str:
    return f"[{address}]" if ":" in address else address
