"""A cluster that runs in the background until it is ended: the core of `penstock cluster`.

A file in the cluster's folder holds the master's URL, the cluster's shape and the mark of its processes.
Without a folder, the user's default folder is used. Logs are kept until the next start.
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
    """The record of a cluster in the background."""

    master: str
    shape: Shape
    mark: str
    daemons: dict[str, int]
    """Process ids of the master and the workers, by name."""

    def processes(self) -> list[psutil.Process]:
        """All processes that still run, including executors."""
        return marked(self.mark)

    def missing(self) -> list[str]:
        """Names of the daemons that no longer run."""
        there = {process.pid for process in self.processes()}
        return [name for name, pid in self.daemons.items() if pid not in there]


def default_folder(own: Mapping[str, str]) -> Path:
    """Default folder of a user's cluster, from these environment variables.

    >>> str(default_folder({"XDG_STATE_HOME": "/state"}))
    '/state/penstock/cluster'
    """
    return Path(own.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "penstock/cluster"


def up(folder: Path, shape: Shape) -> Running:
    """Start a cluster that outlives this process.

    Raises `SettingError` if one already runs in the folder. If the start fails or is interrupted, nothing is
    left running.
    """
    with _alone(folder):
        if (there := running(folder)) is not None:
            raise SettingError(
                f"a cluster already runs in {folder}: {there.master}",
                hint="use it, end it with `penstock cluster down`, or start another one with --folder",
            )
        for name in ("logs", "work", "local", "conf", "recovery"):
            shutil.rmtree(folder / name, ignore_errors=True)
        cluster = Cluster(folder, shape)
        record = Running(cluster.master, shape, cluster.mark, {})
        try:
            _save(folder, record)  # if this process is killed, `down` still finds the others
            cluster.start()
            record = replace(record, daemons=cluster.daemons())
            _save(folder, record)
        except BaseException:
            cluster.end()
            (folder / _STATE).unlink(missing_ok=True)
            raise
    return record


def down(folder: Path) -> Running | None:
    """End the cluster in a folder; returns its record, or None if none ran.

    Raises `SettingError` if some of its processes do not end.
    """
    if not folder.exists():
        return None
    with _alone(folder):
        there = running(folder)
        if there is not None and (left := end_all(there.mark)):
            raise SettingError(
                f"processes of the cluster did not end: {', '.join(str(p.pid) for p in left)}",
                hint="end them by hand, then run `penstock cluster down` again",
            )
        (folder / _STATE).unlink(missing_ok=True)
        for name in ("work", "local", "recovery"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return there


def running(folder: Path) -> Running | None:
    """The record of the cluster in a folder; None if none of its processes runs."""
    try:
        record = codec.decode((folder / _STATE).read_text(), Running)
    except FileNotFoundError:
        return None
    return record if record.processes() else None


def _save(folder: Path, record: Running) -> None:
    (folder / _STATE).write_text(codec.text(record, indent=2))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that only one command changes its cluster at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "lock").open("w")
    except OSError as refused:
        raise SettingError(
            f"cannot write to {folder}: {refused.strerror}", hint="use another one with --folder"
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
    """Default folder of this user's cluster."""
    return default_folder(os.environ)
