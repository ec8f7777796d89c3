"""What tests leave behind: processes, threads, ports, open files and files on disk.

`present` lists what there is at one moment; what is there after a test and was not before it is left
behind. Spark's JVM, its Python workers and the threads that talk to it stay by design; a host that still
listens in such a worker does not.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

MARK = "PENSTOCK_TESTS"
"""An environment variable that tells this run's processes, also those whose parent is gone."""
PATIENCE_S = 10.0
"""How long what was told to end may take."""
STAYS = {"artifacts", "spark-warehouse", "metastore_db", "derby.log", "__pycache__"}
"""What Spark and Python make in a working directory."""

Things = Mapping[tuple[str, Hashable], str]
"""What there is, by kind and identity, each with the words that name it in a message."""


def left_behind(before: Things, patience_s: float = PATIENCE_S) -> list[str]:
    """What is there now and was not before, in words; waits for what is still on its way out."""
    begun, collected = time.monotonic(), False
    while left := {key: words for key, words in present().items() if key not in before}:
        if time.monotonic() - begun > patience_s:
            break
        if not collected:
            gc.collect()  # a server that nobody holds is not left behind: it is not yet collected
            collected = True
        time.sleep(0.02)
    return [f"{kind}: {words}" for (kind, _), words in left.items()]


def present() -> Things:
    """All that a test could leave behind and that is there now."""
    return {
        (kind, identity): words
        for kind, list_them in _KINDS.items()
        for identity, words in list_them()
    }


def _processes() -> Iterator[tuple[Hashable, str]]:
    """Processes of this run; of Spark's Python workers only those that a host still listens in."""
    for process in {*psutil.Process().children(), *_marked()}:
        with suppress(psutil.Error):
            if process.name() == "java":
                continue
            words = f"{process.pid} ({process.status()}) {' '.join(process.cmdline())[:200]}"
            if all(above.name() != "java" for above in process.parents()):
                yield process, words
            elif any(one.status == psutil.CONN_LISTEN for one in process.net_connections("inet")):
                yield process, f"{words} with a host in it"


def _marked() -> Iterator[psutil.Process]:
    """Processes that have inherited this run's mark, where the system tells."""
    mark = f"{MARK}={os.environ[MARK]}\0".encode()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                yield psutil.Process(pid)


def _threads() -> Iterator[tuple[Hashable, str]]:
    """Python's threads, without those that only Spark's own code is running in."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if isinstance(thread, threading._DummyThread):  # of a native pool, such as gRPC's
            continue
        files = list(_files_of(frames.get(thread.ident or 0)))
        of_spark = any("/py4j/" in file or "/pyspark/" in file for file in files)
        if not of_spark or any("/penstock/" in file for file in files):
            yield id(thread), f"{thread.name}{' (daemon)' if thread.daemon else ''}"


def _files_of(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _ports() -> Iterator[tuple[Hashable, str]]:
    for connection in psutil.Process().net_connections("inet"):
        if connection.status == psutil.CONN_LISTEN:
            yield connection.laddr, f"{connection.laddr.ip}:{connection.laddr.port}"


def _descriptors() -> Iterator[tuple[Hashable, str]]:
    """Open files, sockets and pipes of this process, where the system lists them."""
    folder = Path("/proc/self/fd")
    for number in os.listdir(folder) if folder.exists() else ():
        with suppress(OSError):
            target = os.readlink(folder / number)
            if not target.startswith("anon_inode:"):  # gRPC keeps a few for as long as it lives
                yield (number, target), f"{number} -> {target}"


def _files() -> Iterator[tuple[Hashable, str]]:
    for folder in (Path(tempfile.gettempdir()), Path.cwd()):
        for name in os.listdir(folder):
            if name not in STAYS and not name.startswith("."):
                yield (folder, name), str(folder / name)


_KINDS = {
    "process": _processes,
    "thread": _threads,
    "listening port": _ports,
    "open file": _descriptors,
    "file": _files,
}
