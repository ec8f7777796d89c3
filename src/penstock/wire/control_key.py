"""The key to control a running query: its control token, and where to find it.

The checkpoint shows everybody who can read it where the driver listens. The control token is in a file in the
user's state folder, which only the user who started the query can read. To use `penstock ctl` from another
machine, the user chooses a token:

    PENSTOCK_CONTROL_TOKEN        the token, on the driver and where `penstock ctl` is used
    PENSTOCK_CONTROL_TOKEN_FILE   a file with the token; on the driver use `Settings.control_token_file`
    PENSTOCK_TLS_AUTHORITY        files as in `Tls`, for `penstock ctl`, if the flow uses TLS
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
"""Smallest number of characters of a token that a user chooses: shorter ones can be guessed."""
_NAME = re.compile(r"[0-9A-Za-z]+-[0-9a-f]+")


@dataclass(frozen=True)
class ControlKey:
    """Location and credentials of a running query."""

    location: str
    token: str = field(repr=False)
    machine: str
    """Host name of the driver's machine."""
    pid: int
    tls: Tls | None = None
    dashboard: str | None = None
    """Address of the dashboard that the query serves; None if it serves none."""


class KeyFile:
    """A file with the key of one start of a flow. The driver writes it, and `penstock ctl` reads it.

    It is in XDG_STATE_HOME or ~/.local/state, or, if the user has no home, in the folder for temporary
    files. Its own folder belongs to the user, and nobody else can open it.
    """

    def __init__(self, flow: str, run: str, environ: Mapping[str, str]) -> None:
        self._name = f"{flow}-{run}"
        if not _NAME.fullmatch(self._name):
            raise SettingError(
                f"{self._name!r} is not a valid name for a start of a flow",
                hint="check the checkpoint: its entry on the running query is damaged",
            )
        self._folders = _folders(environ)
        self._kept: Path | None = None

    def keep(self, key: ControlKey) -> None:
        """Write the key. If that is not possible, log a warning: the flow runs anyway."""
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
            "Set %s or %s to use `penstock ctl` with this query: its token cannot be saved: %s",
            *(TOKEN, TOKEN_FILE, problem),
        )

    def read(self) -> ControlKey | None:
        """Return the key; None if it is another user's or on another machine."""
        for folder in self._folders:
            with suppress(OSError, PenstockError):
                _must_be_own(folder)
                return codec.decode((folder / f"{self._name}.json").read_bytes(), ControlKey)
        return None

    def remove(self) -> None:
        """Delete the file when the query ends."""
        if self._kept is not None:
            self._kept.unlink(missing_ok=True)


def control_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the control token for a new start of a flow: the one that the user has set, or a random one."""
    return _chosen(settings.control_token_file, environ) or secrets.token_hex(16)


def kept_key(control: Mapping[str, Any], environ: Mapping[str, str]) -> ControlKey | None:
    """Return the key that the driver of a running query has saved; None if this user or machine has none."""
    if "flow" not in control or "run" not in control:
        return None
    return KeyFile(str(control["flow"]), str(control["run"]), environ).read()


def key_of(control: Mapping[str, Any], environ: Mapping[str, str]) -> ControlKey:
    """Return the key of a running query. `control` is the checkpoint's entry on that query."""
    location, pid = str(control["location"]), int(control["pid"])
    kept = kept_key(control, environ)
    chosen = _chosen(environ.get(TOKEN_FILE), environ)
    if chosen is None and kept is not None:
        # Its own location is used, so that nobody gets the token by writing another one to the checkpoint.
        return kept
    if chosen is None:
        raise SettingError(
            f"no control token found for the query at {location}",
            hint="run this as the user who started it, on the driver's machine; or start the flow with "
            f"Settings(control_token_file=...) or {TOKEN}, and set {TOKEN} or {TOKEN_FILE} here to the same",
        )
    tls = _tls(environ) or (None if kept is None else kept.tls)
    if location.startswith("grpc+tls:") != (tls is not None):
        raise SettingError(
            f"the query at {location} uses {'no TLS' if tls else 'TLS'}",
            hint=f"unset {AUTHORITY}"
            if tls
            else f"set {AUTHORITY}, {CERTIFICATE} and {KEY} to files on this machine",
        )
    return ControlKey(location, chosen, "", pid, tls)


def access_of(key: ControlKey) -> Access:
    """Return the credentials that `penstock ctl` uses."""
    return Access(key.token, key.tls)


def _tls(environ: Mapping[str, str]) -> Tls | None:
    authority, certificate, key = (environ.get(n, "") for n in (AUTHORITY, CERTIFICATE, KEY))
    if not authority:
        return None
    return Tls(certificate, key, authority, environ.get(NAME), mutual=bool(certificate))


def _chosen(file: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the token that a user has set, in a file or else in the environment; None if there is none."""
    if file:
        try:
            token, where = Path(file).expanduser().read_text().strip(), file
        except (OSError, UnicodeDecodeError) as refused:
            raise SettingError(
                f"the control token cannot be read from {file}: {refused}",
                hint="write the token into the file, as one line of text",
            ) from refused
    else:
        token, where = environ.get(TOKEN, ""), TOKEN
        if not token:
            return None
    if len(token) < _LEAST or not re.fullmatch(r"[!-~]+", token):
        raise SettingError(
            f"the control token in {where} has {len(token)} characters: it needs {_LEAST} or more, and only "
            "ASCII letters, digits and punctuation",
            hint=f"use {_LEAST} random characters or more, such as those of `openssl rand -hex 16`",
        )
    return token


def _folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders where keys may be, the preferred one first."""
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    own = [Path(state) / "penstock" / "control"] if os.path.isabs(state) else []
    return [*own, Path(tempfile.gettempdir()) / f"penstock-{os.geteuid()}"]


def _settle(folder: Path) -> None:
    """Create the folder, for this user only. Refuse one that another user has created."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _must_be_own(folder)


def _must_be_own(folder: Path) -> None:
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users, or not a folder of this user")


def _write(file: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(file, flags, 0o600), "wb") as opened:
        opened.write(data)


def _tidy(folder: Path) -> None:
    """Remove the keys of killed drivers on this machine."""
    for file in folder.glob("*-*.json"):
        with suppress(OSError, PenstockError):
            key = codec.decode(file.read_bytes(), ControlKey)
            if key.machine == socket.gethostname() and not psutil.pid_exists(key.pid):
                file.unlink()
