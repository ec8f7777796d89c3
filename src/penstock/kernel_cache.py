"""The cache folder for kernels that numba has compiled, which only this user can write to.

numba uses the package's folders, else the user's cache. In a container both may be read-only, or the user
may have no home directory; numba then refuses to load any kernel. numba runs what is in its cache as code,
so a folder in the temporary directory, which everybody can write to, is checked before use.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
from collections.abc import MutableMapping
from pathlib import Path

_KERNELS = "state/keys"
"""A folder of the package that contains kernels."""


def keep_kernels(package: Path, environ: MutableMapping[str, str]) -> None:
    """Give numba a cache folder for the kernels of this package, if it would not find one by itself."""
    if environ.get("NUMBA_CACHE_DIR") or environ.get("NUMBA_CACHE_LOCATOR_CLASSES"):
        return
    if _can_write(package / _KERNELS) or _has_home(environ):
        return
    folder = str(_temporary())
    environ["NUMBA_CACHE_DIR"] = folder
    if not package.is_dir():  # a package in a zip file: numba looks only here
        environ["XDG_CACHE_HOME"] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder


def own_kernels() -> Path:
    """The folder for kernels made of user code. Only this user can write to it."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen or _has_home(os.environ):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(chosen or Path(cache, "numba")) / "penstock"
        if _is_own(folder, others=stat.S_IWOTH):
            return folder
    return _temporary()


def _can_write(folder: Path) -> bool:
    compiled = folder / "__pycache__"
    return os.access(compiled if compiled.exists() else folder, os.W_OK)


def _has_home(environ: MutableMapping[str, str]) -> bool:
    """Whether the user has, or can create, a cache folder that nobody else can write to."""
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache.is_absolute() and all(
        _is_own(folder, others=stat.S_IWOTH) for folder in (cache, cache / "numba")
    )


def _temporary() -> Path:
    """This user's folder in the temporary directory. If another user has taken its name, a new folder for
    this process alone."""
    import tempfile

    folder = Path(tempfile.gettempdir(), f"penstock-kernels-{os.geteuid()}")
    if _is_own(folder, others=stat.S_IRWXG | stat.S_IRWXO):
        return folder
    folder = Path(tempfile.mkdtemp(prefix="penstock-kernels-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not in a process forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path, others: int) -> bool:
    """Whether a folder belongs to this user and gives others none of these rights. Creates it if missing."""
    try:
        folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not status.st_mode & others and os.access(folder, os.W_OK)
