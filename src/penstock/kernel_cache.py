"""Where numba keeps the kernels that it has compiled: in a folder that this user, and nobody else, writes.

numba itself takes the package's folders, else the user's cache. In a container both may be read-only, and
the user may have no home: then it refuses to load a single kernel. What it finds in its cache it runs as
code, so that a folder of a temporary directory, which all can write, must be looked at first.
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
"""A folder of the package that has kernels."""


def keep_kernels(package: Path, environ: MutableMapping[str, str]) -> None:
    """Tell numba of a folder for the kernels of this package, if it would not find one by itself."""
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


def _can_write(folder: Path) -> bool:
    compiled = folder / "__pycache__"
    return os.access(compiled if compiled.exists() else folder, os.W_OK)


def _has_home(environ: MutableMapping[str, str]) -> bool:
    """Whether the user has a cache that nobody else can write, or can make it."""
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache.is_absolute() and all(
        _is_own(folder, others=stat.S_IWOTH) for folder in (cache, cache / "numba")
    )


def _temporary() -> Path:
    """This user's folder in the temporary directory; one for this process alone, if another user has taken
    its name."""
    import tempfile

    folder = Path(tempfile.gettempdir(), f"penstock-kernels-{os.geteuid()}")
    if _is_own(folder, others=stat.S_IRWXG | stat.S_IRWXO):
        return folder
    folder = Path(tempfile.mkdtemp(prefix="penstock-kernels-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not with a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path, others: int) -> bool:
    """Whether a folder, made if it is not there, is this user's, and others have none of these rights."""
    try:
        folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return mine and not found.st_mode & others and os.access(folder, os.W_OK)
