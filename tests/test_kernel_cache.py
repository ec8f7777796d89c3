"""Compiled kernels are kept also where the user has no home and the package cannot be written, and never in a
folder that others can write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.kernel_cache import keep_kernels

ROOT = os.geteuid() == 0
STRANGER = 54_321
"""A user that the machine does not know, as a container may be run by."""
AS_STRANGER = [
    *("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
    "--bounding-set=-all,+dac_read_search",
]
"""How root runs a program as that user, who may read everything: Python may be root's own."""
HASHES = """
import numpy as np
from penstock.state.keys.kernels import hash_ints
hash_ints(np.arange(4))
print(hash_ints.stats.cache_path, sum(hash_ints.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A package whose folders cannot be written, as far as this user is told."""
    folder = tmp_path / "package"
    (folder / "state" / "keys").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        access = os.access
        patch.setattr(
            os,
            "access",
            lambda path, mode: not str(path).startswith(str(folder)) and access(path, mode),
        )
        yield folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        sys.modules["numba"].config, "CACHE_DIR", ""
    ) if "numba" in sys.modules else None
    return tmp_path / f"penstock-kernels-{os.geteuid()}"


def homeless() -> dict[str, str]:
    return {"XDG_CACHE_HOME": "/dev/null/nowhere"}


def test_numba_is_left_alone_where_it_finds_a_place(tmp_path: Path, package: Path) -> None:
    mine = {"NUMBA_CACHE_DIR": "/mine"}
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for environ in (mine, home):
        before = dict(environ)
        keep_kernels(package, environ)
        assert environ == before
    beside = homeless()
    keep_kernels(Path(penstock.__file__).parent, beside)
    assert beside == homeless()


def test_without_a_home_kernels_go_to_a_folder_of_ones_own(package: Path, temporary: Path) -> None:
    for _ in range(2):  # made, then found
        environ = homeless()
        keep_kernels(package, environ)
        assert environ["NUMBA_CACHE_DIR"] == str(temporary)
        assert temporary.stat().st_mode & 0o777 == 0o700
        assert environ["XDG_CACHE_HOME"] == homeless()["XDG_CACHE_HOME"]


def test_numba_looks_only_into_the_users_cache_for_a_zip_file(
    package: Path, temporary: Path
) -> None:
    environ = homeless()
    keep_kernels(package / "penstock.zip" / "penstock", environ)
    assert environ["XDG_CACHE_HOME"] == str(temporary)


@pytest.mark.parametrize("trap", ["loose", "link", "file", "stranger"])
def test_a_folder_that_others_can_write_is_not_used(
    package: Path, temporary: Path, tmp_path: Path, trap: str
) -> None:
    if trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        temporary.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        temporary.touch()
    else:
        temporary.mkdir()
        temporary.chmod(0o777 if trap == "loose" else 0o700)
    if trap == "stranger":
        if not ROOT:
            pytest.skip("only root can give a folder to another user")
        os.chown(temporary, STRANGER, STRANGER)
    environ = homeless()
    keep_kernels(package, environ)
    chosen = Path(environ["NUMBA_CACHE_DIR"])
    assert chosen != temporary
    assert chosen.parent == tmp_path
    assert chosen.stat().st_mode & 0o777 == 0o700


def test_a_cache_of_the_user_that_all_can_write_is_not_used(
    package: Path, temporary: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    environ = {"XDG_CACHE_HOME": str(cache)}
    keep_kernels(package, environ)
    assert environ["NUMBA_CACHE_DIR"] == str(temporary)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user can reach and write, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_user_without_a_home_and_with_a_package_of_another(open_folder: Path, kind: str) -> None:
    """As a container runs: some user number, no home, all but the temporary folder read-only."""
    if ROOT and shutil.which("setpriv") is None:
        pytest.skip("root can write everywhere, and setpriv, which would help, is not there")
    source = Path(penstock.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__")
    copied = Path(shutil.copytree(source, open_folder / "lib" / "penstock", ignore=ignore)).parent
    if kind == "zip":
        shutil.make_archive(str(open_folder / "penstock"), "zip", copied)
        shutil.rmtree(copied)
        copied = open_folder / "penstock.zip"
    else:
        for folder in (copied / "penstock", *(copied / "penstock").rglob("*/")):
            folder.chmod(0o555)
    paths = [str(copied), *(path for path in sys.path if path.endswith("site-packages"))]
    environ = {
        "TMPDIR": str(open_folder),
        "PYTHONPATH": ":".join(paths),
        "PATH": os.environ["PATH"],
    }
    environ |= {"PYTHONDONTWRITEBYTECODE": "1"} | ({} if ROOT else {"HOME": "/dev/null"})

    command = [*(AS_STRANGER if ROOT else []), sys.executable, "-c", HASHES]
    kept = open_folder / f"penstock-kernels-{STRANGER if ROOT else os.geteuid()}"
    for times in (0, 1):  # compiled, then found
        done = subprocess.run(
            command, env=environ, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        place, hits = done.stdout.split()
        assert Path(place).is_relative_to(kept)
        assert int(hits) == times
    for folder in open_folder.rglob("*/"):
        folder.chmod(0o755)
