"""Access to the endpoints of a run: the tokens that they require, and TLS.

    courier, host, driver ──run token──────► driver, host, live courier, service of local functions
    `penstock ctl` ─────────control token──► driver, and there only `control_*` actions

A token is compared in constant time, before a request reaches Penstock. SECURITY.md says how much of the
request Flight has received by then.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from penstock.errors import ProtocolError, SettingError
from penstock.settings import Settings, Tls

CONTROL = "control_"
"""Prefix of the actions that require the control token."""

# Without this gRPC logs every failed handshake: a port scan would fill the log. gRPC reads the variable when
# the first server or client is made.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_log = logging.getLogger("penstock.access")
_LOG_EVERY_S = 60.0
"""Seconds between two log lines about refused requests."""


@dataclass(frozen=True)
class Access:
    """The credentials that a client sends and a server requires.

    They travel to tasks inside their functions, never in anything that Spark writes to its event log.
    """

    token: str = field(repr=False)
    tls: Tls | None = None
    most_bytes: int = 256 << 20
    """Largest body of a request, in bytes."""
    functions: Any = field(default=None, repr=False, compare=False)
    """The backend of the flow's burst workers, with its own credentials. Only couriers have it."""

    @staticmethod
    def new(settings: Settings) -> Access:
        """Return the access for a new run, with a random token."""
        return Access(secrets.token_hex(16), settings.tls, int(settings.request_mb * (1 << 20)))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that a client sends with every call."""
        return [(b"authorization", _shown(self.token))]

    def at(self, location: str) -> str:
        """Return a location with the scheme for TLS, if TLS is on.

        >>> Access("t").at("grpc://host:1"), Access("t", Tls("c", "k", "a")).at("grpc://host:1")
        ('grpc://host:1', 'grpc+tls://host:1')
        """
        return location.replace("grpc://", "grpc+tls://", 1) if self.tls else location

    def server_options(self) -> dict[str, Any]:
        """Return the arguments to create a Flight server with this access."""
        if self.tls is None:
            return {}
        pair = (_read(self.tls.certificate), _read(self.tls.key))
        if not self.tls.mutual:
            return {"tls_certificates": [pair]}
        authority = _read(self.tls.authority)
        return {"tls_certificates": [pair], "verify_client": True, "root_certificates": authority}

    def client_options(self) -> dict[str, Any]:
        """Return the arguments to create a Flight client with this access."""
        if self.tls is None:
            return {}
        options: dict[str, Any] = {"tls_root_certs": _read(self.tls.authority)}
        if self.tls.mutual:
            options["cert_chain"] = _read(self.tls.certificate)
            options["private_key"] = _read(self.tls.key)
        if self.tls.name:
            options["override_hostname"] = self.tls.name
        return options

    def must_fit(self, size: int) -> None:
        """Refuse a request body that is too large."""
        if size > self.most_bytes:
            raise ProtocolError(
                f"a request has {size} bytes, but at most {self.most_bytes} are allowed",
                hint="raise Settings.request_mb; an epoch with fewer rows makes smaller requests",
            )


class Controls(fl.ServerMiddleware):  # type: ignore[misc]
    """A mark on calls that came with the control token."""


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Accepts calls with the run token, and marks those with the control token.

    All others are refused: no token, another token, or several.
    """

    def __init__(
        self, token: str, control: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._run, self._control = _shown(token), _shown(control or "")
        self._has_control = bool(control)
        self._clock, self._lock = clock, threading.Lock()
        self._refused, self._logged_at = 0, -_LOG_EVERY_S

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Controls | None:
        shown = headers.get("authorization", ())
        # A header that is not text comes as bytes, or as text with surrogates.
        header = shown[0] if len(shown) == 1 else b""
        token = header.encode(errors="surrogateescape") if isinstance(header, str) else header
        if hmac.compare_digest(token, self._run):
            return None
        if hmac.compare_digest(token, self._control) and self._has_control:
            if info.method != fl.FlightMethod.DO_ACTION:
                raise fl.FlightUnauthorizedError("the control token opens actions only")
            return Controls()
        self._note()
        raise fl.FlightUnauthenticatedError("this endpoint asks for the run's token")

    def _note(self) -> None:
        """Log refused requests, at most once a minute, so that they cannot fill the log."""
        with self._lock:
            self._refused += 1
            now = self._clock()
            if now - self._logged_at < _LOG_EVERY_S:
                return
            refused, self._refused, self._logged_at = self._refused, 0, now
        _log.warning("%d requests without a valid token were refused", refused)


def _shown(token: str) -> bytes:
    return b"Bearer " + token.encode()


def _read(file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as missing:
        raise SettingError(
            f"the TLS file {file} cannot be read on this machine: {missing.strerror}",
            hint="put the files of Settings.tls on every machine of the cluster, readable by the "
            "user that Spark runs as",
        ) from missing
