"""Serves the dashboard in a thread of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from penstock.errors import SettingError
from penstock.extensions import imported
from penstock.observe.recording import Recording

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.observe.dashboard.app import Orders

_HERE = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::", "")
_END_S = 3.0
"""Seconds that open requests have to end."""
_CLIENTS = 100
"""Connections at the same time at most."""


def listening(where: bool | int | str) -> socket.socket | None:
    """A socket that listens for the dashboard; None if there shall be none.

    `where` is True for a free port on the loopback address, a port, or an address and a port such as
    "0.0.0.0:8080". Raises `SettingError` if the extra is not installed or the port is taken.
    """
    if where is False:
        return None
    for module in ("starlette", "uvicorn", "sse_starlette", "prometheus_client"):
        imported(module, "dashboard", "the dashboard")
    address, port = _place(where)
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)
    except OSError as refused:
        raise SettingError(
            f"the dashboard cannot listen on {address or 'all addresses'}, port {port}: "
            f"{refused.strerror or refused}",
            hint="use another port, or dashboard=True for a free one",
        ) from refused


def _place(where: bool | int | str) -> tuple[str, int]:
    """Address and port.

    >>> _place(True), _place(8080), _place("0.0.0.0:80"), _place("[::1]:80")
    (('127.0.0.1', 0), ('127.0.0.1', 8080), ('0.0.0.0', 80), ('::1', 80))
    """
    if where is True:
        return _HERE, 0
    address, _, port = (
        f"{_HERE}:{where}".rpartition(":") if isinstance(where, int) else str(where).rpartition(":")
    )
    if not port.isdigit() or int(port) > 65_535:
        raise SettingError(
            f"dashboard={where!r} is not a place to listen",
            hint='use True, a port such as 8080, or an address and a port such as "0.0.0.0:8080"',
        )
    return address.strip("[]") or _HERE, int(port)


class DashboardServer:
    """A dashboard that is being served, from its creation until `stop`."""

    def __init__(
        self,
        listens: socket.socket,
        recording: Recording,
        orders: Orders | None = None,
        token: str = "",
        metrics: ASGIApp | None = None,
    ) -> None:
        import uvicorn

        from penstock.observe.dashboard.app import dashboard_app
        from penstock.observe.dashboard.timeline import Timeline

        address, port = listens.getsockname()[:2]
        shown = _HERE if address in _EVERYWHERE else address
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        """Address of the page, without a token."""
        self._closing = threading.Event()
        timeline = Timeline(recording)
        timeline.feed(self._closing)
        app = dashboard_app(
            recording,
            orders,
            token,
            names=_names(address),
            metrics=metrics,
            closing=self._closing,
            timeline=timeline,
        )
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CLIENTS,
            timeout_graceful_shutdown=int(_END_S),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listens],), name="dashboard", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End open requests, and stop serving. May be called again."""
        self._closing.set()
        self._server.should_exit = True
        self._thread.join(2 * _END_S)


def _names(address: str) -> Sequence[str]:
    """Names under which a server at this address may be called."""
    names = {"localhost", _HERE, "::1", address}
    if address not in names - {address}:
        names |= {socket.gethostname(), socket.getfqdn()}
        names |= {a.address.partition("%")[0] for s in psutil.net_if_addrs().values() for a in s}
    names |= {f"[{name}]" for name in names if ":" in name}
    return sorted(name for name in names if name and "*" not in name)
