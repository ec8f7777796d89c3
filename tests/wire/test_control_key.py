"""The control token: where it is saved, who can read it, and how another machine gets it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.settings import Settings, Tls
from penstock.wire.control_key import ControlKey, KeyFile, control_token, key_of

CHOSEN = "a-token-that-a-user-has-chosen"
LOCATION = "grpc://192.0.2.1:4711"
KEY = ControlKey(LOCATION, "the-token-of-control", "machine", 17)
CONTROL = {"location": "grpc://192.0.2.66:1", "pid": 17, "flow": "f00d", "run": "beef"}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_can_read_it_until_the_query_ends(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    kept = KeyFile("f00d", "beef", environ)
    kept.keep(KEY)
    [file] = (tmp_path / ".local/state/penstock/control").iterdir()
    assert (_mode(file), _mode(file.parent)) == (0o600, 0o700)
    assert KeyFile("f00d", "beef", environ).read() == KEY
    assert KeyFile("f00d", "dead", environ).read() is None
    kept.remove()
    assert KeyFile("f00d", "beef", environ).read() is None
    assert "the-token-of-control" not in repr(KEY)


@pytest.mark.parametrize("environ", [{}, {"HOME": "/proc/nowhere"}, {"XDG_STATE_HOME": "relative"}])
def test_a_user_without_a_home(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    KeyFile("f00d", "beef", environ).keep(KEY)
    assert KeyFile("f00d", "beef", environ).read() == KEY
    assert _mode(tmp_path / f"penstock-{os.geteuid()}") == 0o700


def test_a_folder_that_others_can_read_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any user may have created it in the folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"penstock-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    KeyFile("f00d", "beef", {}).keep(KEY)
    assert list(folder.iterdir()) == []
    assert "its token cannot be saved" in caplog.text
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    KeyFile("f00d", "beef", {}).keep(KEY)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    KeyFile("f00d", "beef", environ).keep(KEY)
    lstat = os.lstat
    monkeypatch.setattr(
        os, "lstat", lambda path: os.stat_result([*lstat(path)[:4], 4711, *lstat(path)[5:10]])
    )
    assert KeyFile("f00d", "beef", environ).read() is None


def test_keys_of_drivers_that_were_killed_are_removed(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    keys = {
        "aa": ControlKey(LOCATION, "t", here, gone.pid),
        "bb": ControlKey(LOCATION, "t", here, os.getpid()),
        "cc": ControlKey(LOCATION, "t", "another machine", gone.pid),
    }
    for run, key in keys.items():
        KeyFile("f00d", run, environ).keep(key)
    KeyFile("f00d", "dd", environ).keep(KEY)
    left = {run for run in keys if KeyFile("f00d", run, environ).read() is not None}
    assert left == {"bb", "cc"}


def test_the_location_is_the_one_saved_with_the_token(tmp_path: Path) -> None:
    """The checkpoint's location is not used: a user who can write there would get the token."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    KeyFile("f00d", "beef", environ).keep(KEY)
    assert key_of(CONTROL, environ) == KEY


@pytest.mark.parametrize("name", ["../x", "a/b", "", "f00d\n"])
def test_a_checkpoint_cannot_name_another_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not a valid name for a start"):
        key_of(CONTROL | {"run": name}, {"XDG_STATE_HOME": str(tmp_path)})


def test_a_token_that_the_user_has_chosen(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CHOSEN}\n")
    by_file, by_name = Settings(control_token_file=str(file)), {"PENSTOCK_CONTROL_TOKEN": CHOSEN}
    assert control_token(by_file, {}) == control_token(Settings(), by_name) == CHOSEN
    assert control_token(Settings(), {}) != control_token(Settings(), {})
    for environ in (by_name, {"PENSTOCK_CONTROL_TOKEN_FILE": str(file)}):
        key = key_of(CONTROL, environ)
        assert (key.location, key.token) == (CONTROL["location"], CHOSEN)


@pytest.mark.parametrize("token", ["short", "x" * 15, "with space " * 4, "ümlaut" * 4, "tab\t" * 8])
def test_a_weak_or_invalid_token_is_refused(token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    for attempt in (
        lambda: control_token(Settings(control_token_file=str(file)), {}),
        lambda: control_token(Settings(), {"PENSTOCK_CONTROL_TOKEN": token}),
    ):
        with pytest.raises(SettingError, match="16 random characters") as refused:
            attempt()
        assert token not in str(refused.value)


def test_a_missing_token_is_explained(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with pytest.raises(SettingError, match=r"as the user who started it.*PENSTOCK_CONTROL_TOKEN"):
        key_of(CONTROL, environ)
    with pytest.raises(SettingError, match="cannot be read from"):
        key_of(CONTROL, environ | {"PENSTOCK_CONTROL_TOKEN_FILE": str(tmp_path / "missing")})
    with pytest.raises(SettingError, match="no control token found"):
        key_of({"location": LOCATION, "token": "of an older release", "pid": 1}, environ)


def test_tls_from_another_machine() -> None:
    environ = {"PENSTOCK_CONTROL_TOKEN": CHOSEN}
    secured = CONTROL | {"location": "grpc+tls://192.0.2.66:1"}
    with pytest.raises(SettingError, match=r"uses TLS.*set PENSTOCK_TLS_AUTHORITY"):
        key_of(secured, environ)
    environ |= {"PENSTOCK_TLS_AUTHORITY": "ca.crt"}
    assert key_of(secured, environ).tls == Tls("", "", "ca.crt", mutual=False)
    environ |= {"PENSTOCK_TLS_CERTIFICATE": "me.crt", "PENSTOCK_TLS_KEY": "me.key"}
    environ |= {"PENSTOCK_TLS_NAME": "penstock"}
    assert key_of(secured, environ).tls == Tls("me.crt", "me.key", "ca.crt", "penstock")
    with pytest.raises(SettingError, match="uses no TLS"):  # it may be there to steal the token
        key_of(CONTROL, environ)
