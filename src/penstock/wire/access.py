"""Access to the endpoints of a run: the token that they ask for, and TLS.

    courier, host, driver ──token of the run──► driver, host, live courier, service of local functions
    `penstock ctl` ────────token of control───► driver, and there only `control_*` actions

A token is compared in constant time, and before a request reaches Penstock. What Flight has received of it
by then is said in SECURITY.md.
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
"""What the names of actions begin with that only the token of control opens."""

# Else gRPC writes a line for every handshake that fails: a scan of ports would fill the log. It looks at this
# when the first server or client is made.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_log = logging.getLogger("penstock.access")
_TELL_S = 60.0
"""Seconds from one line in the log on refused requests to the next."""


@dataclass(frozen=True)
class Access:
    """What a client shows and a server asks for. It travels to tasks inside their functions, never in what
    Spark writes into its event log."""

    token: str = field(repr=False)
    tls: Tls | None = None
    most_bytes: int = 256 << 20
    """Bytes that the body of one request may have."""

    @staticmethod
    def new(settings: Settings) -> Access:
        """The access to the endpoints of a run that begins."""
        return Access(secrets.token_hex(16), settings.tls, int(settings.request_mb * (1 << 20)))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What a client sends with every call."""
        return [(b"authorization", _shown(self.token))]

    def at(self, location: str) -> str:
        """A location with the scheme that says whether TLS is spoken there.

        >>> Access("t").at("grpc://host:1"), Access("t", Tls("c", "k", "a")).at("grpc://host:1")
        ('grpc://host:1', 'grpc+tls://host:1')
        """
        return location.replace("grpc://", "grpc+tls://", 1) if self.tls else location

    def server_options(self) -> dict[str, Any]:
        """How a Flight server is made for it."""
        if self.tls is None:
            return {}
        pair = (_read(self.tls.certificate), _read(self.tls.key))
        if not self.tls.mutual:
            return {"tls_certificates": [pair]}
        authority = _read(self.tls.authority)
        return {"tls_certificates": [pair], "verify_client": True, "root_certificates": authority}

    def client_options(self) -> dict[str, Any]:
        """How a Flight client is made for it."""
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
        """Refuse a body that is too large to be looked at."""
        if size > self.most_bytes:
            raise ProtocolError(
                f"a request of {size} bytes, where {self.most_bytes} are let through",
                hint="raise Settings.request_mb; an epoch with fewer rows makes smaller requests",
            )


class Controls(fl.ServerMiddleware):  # type: ignore[misc]
    """Marks a call with the token of control."""


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls with the run's token pass, and marks those with the token of control.

    Anything else is refused: no token, another one, or more than one.
    """

    def __init__(
        self, token: str, control: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._run, self._control = _shown(token), _shown(control or "")
        self._has_control = bool(control)
        self._clock, self._lock = clock, threading.Lock()
        self._refused, self._told_at = 0, -_TELL_S

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Controls | None:
        shown = headers.get("authorization", ())
        # A header that is no text comes as bytes, or with what stands for its bytes.
        found = shown[0] if len(shown) == 1 else b""
        told = found.encode(errors="surrogateescape") if isinstance(found, str) else found
        if hmac.compare_digest(told, self._run):
            return None
        if hmac.compare_digest(told, self._control) and self._has_control:
            if info.method != fl.FlightMethod.DO_ACTION:
                raise fl.FlightUnauthorizedError("the token of control opens actions only")
            return Controls()
        self._note()
        raise fl.FlightUnauthenticatedError("this endpoint asks for the run's token")

    def _note(self) -> None:
        """Tell of refused requests, at most once a minute: who sends them must not fill the log."""
        with self._lock:
            self._refused += 1
            now = self._clock()
            if now - self._told_at < _TELL_S:
                return
            refused, self._refused, self._told_at = self._refused, 0, now
        _log.warning("%d requests without a valid token were refused", refused)


def _shown(token: str) -> bytes:
    return b"Bearer " + token.encode()


def _read(file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as missing:
        raise SettingError(
            f"the TLS file {file} cannot be read here: {missing.strerror}",
            hint="Settings.tls names files that are on every machine of the cluster, readable by the "
            "user that Spark runs as",
        ) from missing
