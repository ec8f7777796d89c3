"""A cluster that goes on in the background, until somebody ends it. `penstock cluster` is this.

What runs is told by a file in the cluster's folder: the master's URL, its shape and the mark of its
processes. The folder is the user's, one if none is named. Logs stay until the next start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from penstock import codec
from penstock.console.cluster.cluster import Cluster, Shape
from penstock.console.cluster.reaper import end_all, marked
from penstock.errors import SettingError

_STATE = "cluster.json"


@dataclass(frozen=True)
class Running:
    """What is known of a cluster in the background."""

    master: str
    shape: Shape
    mark: str
    daemons: dict[str, int]
    """The processes of the master and the workers."""

    def processes(self) -> list[psutil.Process]:
        """All that still runs, executors included."""
        return marked(self.mark)

    def missing(self) -> list[str]:
        """Daemons that run no more."""
        there = {process.pid for process in self.processes()}
        return [name for name, pid in self.daemons.items() if pid not in there]


def default_folder(own: Mapping[str, str]) -> Path:
    """Where a user's cluster is, if not told otherwise.

    >>> str(default_folder({"XDG_STATE_HOME": "/state"}))
    '/state/penstock/cluster'
    """
    return Path(own.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "penstock/cluster"


def up(folder: Path, shape: Shape) -> Running:
    """Start a cluster that outlives this process. A `SettingError` if the folder has one already. Whatever
    ends this early, Ctrl-C too, leaves nothing running."""
    with _alone(folder):
        if (there := running(folder)) is not None:
            raise SettingError(
                f"a cluster runs already in {folder}: {there.master}",
                hint="use it, or end it with `penstock cluster down`; --folder has another beside it",
            )
        for name in ("logs", "work", "local", "conf", "recovery"):
            shutil.rmtree(folder / name, ignore_errors=True)
        cluster = Cluster(folder, shape)
        found = Running(cluster.master, shape, cluster.mark, {})
        try:
            _note(folder, found)  # should this process be killed, `down` still finds all of it
            cluster.start()
            found = replace(found, daemons=cluster.daemons())
            _note(folder, found)
        except BaseException:
            cluster.end()
            (folder / _STATE).unlink(missing_ok=True)
            raise
    return found


def down(folder: Path) -> Running | None:
    """End all of a folder's cluster; returns what ran, or None. A `SettingError` if some of it stays."""
    if not folder.exists():
        return None
    with _alone(folder):
        there = running(folder)
        if there is not None and (left := end_all(there.mark)):
            raise SettingError(
                f"processes of the cluster did not end: {', '.join(str(one.pid) for one in left)}",
                hint="end them by hand, then call `penstock cluster down` again",
            )
        (folder / _STATE).unlink(missing_ok=True)
        for name in ("work", "local", "recovery"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return there


def running(folder: Path) -> Running | None:
    """The cluster that runs in a folder, or what is left of one; None if nothing of it runs."""
    try:
        found = codec.decode((folder / _STATE).read_text(), Running)
    except FileNotFoundError:
        return None
    return found if found.processes() else None


def _note(folder: Path, found: Running) -> None:
    (folder / _STATE).write_text(codec.text(found, indent=2))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one command at a time changes a folder's cluster."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "lock").open("w")
    except OSError as refused:
        raise SettingError(
            f"cannot write to {folder}: {refused.strerror}", hint="name another with --folder"
        ) from refused
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"another command is starting or ending the cluster in {folder}",
                hint="wait for it, then try again",
            ) from None
        yield


def user_folder() -> Path:
    """Where this user's cluster is, if not told otherwise."""
    return default_folder(os.environ)
