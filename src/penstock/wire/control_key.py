"""What opens the control of a running query: its own token, and where the user who started it keeps it.

The checkpoint says where the driver listens, to all who can read it. The token of control is in a file below
the user's state folder, which only that user can read; or the user has chosen it, for those who steer from
another machine:

    PENSTOCK_CONTROL_TOKEN        the token; on the driver and where `penstock ctl` is used
    PENSTOCK_CONTROL_TOKEN_FILE   a file that holds it; on the driver that is `Settings.control_token_file`
    PENSTOCK_TLS_AUTHORITY        for `penstock ctl`, where the flow speaks TLS: files, as in `Tls`
    PENSTOCK_TLS_CERTIFICATE, PENSTOCK_TLS_KEY, PENSTOCK_TLS_NAME
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from penstock import codec
from penstock.errors import PenstockError, SettingError
from penstock.settings import Settings, Tls
from penstock.wire.access import Access

TOKEN, TOKEN_FILE = "PENSTOCK_CONTROL_TOKEN", "PENSTOCK_CONTROL_TOKEN_FILE"
AUTHORITY, NAME = "PENSTOCK_TLS_AUTHORITY", "PENSTOCK_TLS_NAME"
CERTIFICATE, KEY = "PENSTOCK_TLS_CERTIFICATE", "PENSTOCK_TLS_KEY"

_log = logging.getLogger("penstock.query")
_LEAST = 16
"""Characters of a token that a user has chosen: fewer can be guessed."""
_NAME = re.compile(r"[0-9A-Za-z]+-[0-9a-f]+")


@dataclass(frozen=True)
class ControlKey:
    """How to reach a running query, and what to show there."""

    location: str
    token: str = field(repr=False)
    machine: str
    """The driver's."""
    pid: int
    tls: Tls | None = None


class KeyFile:
    """The key of one start of a flow, in a file of the user's. Made by the driver and read by `penstock ctl`.

    It is below XDG_STATE_HOME or ~/.local/state, or, for a user without a home, below the folder for
    temporary files; in a folder that is the user's own and that nobody else can look into.
    """

    def __init__(self, flow: str, run: str, environ: Mapping[str, str]) -> None:
        self._name = f"{flow}-{run}"
        if not _NAME.fullmatch(self._name):
            raise SettingError(f"{self._name!r} does not name a start of a flow")
        self._folders = _folders(environ)
        self._kept: Path | None = None

    def keep(self, key: ControlKey) -> None:
        """Write the key. Where that is not possible, a flow runs all the same, and the log says so."""
        problem = ""
        for folder in self._folders:
            try:
                _settle(folder)
                _tidy(folder)
                file = folder / f"{self._name}.json"
                _write(file, codec.encode(key))
            except OSError as refused:
                problem = str(refused)
                continue
            self._kept = file
            return
        _log.warning(
            "`penstock ctl` needs %s or %s for this query: its token cannot be kept here: %s",
            *(TOKEN, TOKEN_FILE, problem),
        )

    def read(self) -> ControlKey | None:
        """The key, if it is this user's, and on this machine."""
        for folder in self._folders:
            with suppress(OSError, PenstockError):
                _must_be_own(folder)
                return codec.decode((folder / f"{self._name}.json").read_bytes(), ControlKey)
        return None

    def remove(self) -> None:
        """The query ends."""
        if self._kept is not None:
            self._kept.unlink(missing_ok=True)


def control_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """The token of control of a flow that begins: the one that the user has chosen, or a random one."""
    return _chosen(settings.control_token_file, environ) or secrets.token_hex(16)


def key_of(control: Mapping[str, Any], environ: Mapping[str, str]) -> ControlKey:
    """How to reach the query that its checkpoint tells this of."""
    location, pid = str(control["location"]), int(control["pid"])
    kept = None
    if "flow" in control and "run" in control:
        kept = KeyFile(str(control["flow"]), str(control["run"]), environ).read()
    chosen = _chosen(environ.get(TOKEN_FILE), environ)
    if chosen is None and kept is not None:
        return kept  # with its own location: who can write the checkpoint does not get the token
    if chosen is None:
        raise SettingError(
            f"the token of control of the query at {location} is not here",
            hint="ask as the user who started it, on the driver's machine; or start the flow with "
            f"Settings(control_token_file=...) or {TOKEN}, and set {TOKEN} or {TOKEN_FILE} here to the same",
        )
    tls = _tls(environ) or (None if kept is None else kept.tls)
    if location.startswith("grpc+tls:") != (tls is not None):
        raise SettingError(
            f"the query at {location} speaks {'no TLS' if tls else 'TLS'}",
            hint=f"unset {AUTHORITY}"
            if tls
            else f"set {AUTHORITY}, {CERTIFICATE} and {KEY} to files here",
        )
    return ControlKey(location, chosen, "", pid, tls)


def access_of(key: ControlKey) -> Access:
    """What `penstock ctl` shows."""
    return Access(key.token, key.tls)


def _tls(environ: Mapping[str, str]) -> Tls | None:
    authority, certificate, key = (environ.get(n, "") for n in (AUTHORITY, CERTIFICATE, KEY))
    if not authority:
        return None
    return Tls(certificate, key, authority, environ.get(NAME), mutual=bool(certificate))


def _chosen(file: str | None, environ: Mapping[str, str]) -> str | None:
    """The token that a user has chosen, by a file or else by the environment."""
    if file:
        try:
            token, where = Path(file).expanduser().read_text().strip(), file
        except (OSError, UnicodeDecodeError) as refused:
            raise SettingError(
                f"the token of control cannot be read from {file}: {refused}",
                hint="write it into the file, as one line of text",
            ) from refused
    else:
        token, where = environ.get(TOKEN, ""), TOKEN
        if not token:
            return None
    if len(token) < _LEAST or not re.fullmatch(r"[!-~]+", token):
        raise SettingError(
            f"the token of control in {where} has {len(token)} characters, or some that are not letters, "
            "digits or signs of ASCII",
            hint=f"use {_LEAST} random characters or more, such as those of `openssl rand -hex 16`",
        )
    return token


def _folders(environ: Mapping[str, str]) -> list[Path]:
    """Where keys may be, the best place first."""
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    found = [Path(state) / "penstock" / "control"] if os.path.isabs(state) else []
    return [*found, Path(tempfile.gettempdir()) / f"penstock-{os.geteuid()}"]


def _settle(folder: Path) -> None:
    """Make the folder, for nobody else; what another user has made in its place is not used."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _must_be_own(folder)


def _must_be_own(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users")


def _write(file: Path, data: bytes) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(file, how, 0o600), "wb") as opened:
        opened.write(data)


def _tidy(folder: Path) -> None:
    """Remove the keys of drivers of this machine that were killed."""
    for file in folder.glob("*-*.json"):
        with suppress(OSError, PenstockError):
            key = codec.decode(file.read_bytes(), ControlKey)
            if key.machine == socket.gethostname() and not psutil.pid_exists(key.pid):
                file.unlink()
