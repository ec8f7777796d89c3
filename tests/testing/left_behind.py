"""A check that nothing is left behind: processes, threads, ports, descriptors, files, signal handlers.

Anything that exists after a test and did not exist before it is left behind. Spark's JVM, its Python workers
and the threads that talk to it are allowed to stay. A host that still listens in such a worker is not.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

MARK = "PENSTOCK_TESTS"
"""Environment variable that marks the processes of a test run, even if their parents have ended."""
PATIENCE_S = 10.0
"""Seconds that processes and threads may take to end."""
STAYS = {"artifacts", "derby.log", "metastore_db", "spark-warehouse", "__pycache__"}
"""Files that Spark and Python create in a working directory."""

Things = Mapping[Hashable, str]
"""All things of one kind, by identity, with the text that names each in a message."""


@contextmanager
def nothing_left_behind(
    by: str, *kinds: Callable[[], Things], patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Fail if anything of these kinds (none: of all kinds) is left behind. `by` names the culprit."""
    kinds = kinds or KINDS
    before = {kind: kind() for kind in kinds}
    yield
    left, until = _new(before), time.monotonic() + patience_s
    if left:
        gc.collect()  # objects without references are not left behind
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = _new(before)
    if left:
        pytest.fail("\n  ".join([f"{by} left behind:", *left]), pytrace=False)


def _new(before: Mapping[Callable[[], Things], Things]) -> list[str]:
    return [
        f"{kind.__name__}: {words}"
        for kind, there in before.items()
        for identity, words in kind().items()
        if identity not in there
    ]


def processes() -> Things:
    """Processes of this run. Spark's Python workers count only if a host still listens in them."""
    running: dict[Hashable, str] = {}
    for process in {*psutil.Process().children(), *_marked()}:
        with suppress(psutil.Error):
            words = f"{process.pid} ({process.status()}) {' '.join(process.cmdline())[:200]}"
            if process.name() == "java":
                continue
            if all(above.name() != "java" for above in process.parents()):
                running[process] = words
            elif any(one.status == psutil.CONN_LISTEN for one in process.net_connections("inet")):
                running[process] = f"a host in {words}"
    return running


def _marked() -> Iterator[psutil.Process]:
    """Processes that have inherited this run's mark, where the system shows their environment."""
    mark = f"{MARK}={os.environ[MARK]}\0".encode()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                yield psutil.Process(pid)


_NEVER_BACK = "kafka-transaction"
"""A call of librdkafka that may never return after brokers were away (`live/sinks/kafka.py`). Its thread
stays until the process ends."""


_LATER = {
    "AnyIO worker thread": "dashboard",
    "journal_0": "recorder",
    "events_0": "recorder",
    "moments_0": "recorder",
}
"""Threads that may start while a query of several tests runs -> the thread that they end with."""


def threads() -> Things:
    """Python's threads, without those of native pools, those that run only Spark's code, and those that
    librdkafka blocks forever."""
    alive: dict[Hashable, str] = {}
    frames = sys._current_frames()
    names = {thread.name for thread in threading.enumerate()}
    for thread in threading.enumerate():
        if _LATER.get(thread.name) in names:
            continue
        files, frame = [], frames.get(thread.ident or 0)
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        of_spark = any("/py4j/" in file or "/pyspark/" in file for file in files)
        if of_spark and not any("/penstock/" in file for file in files):
            continue
        if not isinstance(thread, threading._DummyThread) and thread.name != _NEVER_BACK:
            alive[thread] = thread.name
    return alive


def ports() -> Things:
    """Ports that this process listens on, without the one on which Spark's JVM calls it."""
    connections = psutil.Process().net_connections("inet")
    listening = {link.laddr for link in connections if link.status == psutil.CONN_LISTEN}
    gateway = SparkContext._gateway
    called_by_spark = vars(gateway).get("_callback_server") if gateway else None
    return {
        address: f"{address.ip}:{address.port}"
        for address in listening
        if not called_by_spark or called_by_spark.server_socket.getsockname()[1] != address.port
    }


def descriptors() -> Things:
    """Open files, sockets and pipes of this process, where the system lists them.

    Leaves out those that gRPC (events), Arrow (a pipe to itself) and matplotlib (fonts) keep open for good.
    With a Spark session, it also leaves out sockets and pipes, since the session keeps a pool of them to its
    JVM.
    """
    kept = ("anon_inode:", "socket:", "pipe:") if SparkContext._gateway else ("anon_inode:",)
    targets, folder = {}, Path("/proc/self/fd")
    for number in os.listdir(folder) if folder.exists() else ():
        with suppress(OSError):
            targets[number] = os.readlink(folder / number)
    ends = Counter(targets.values())
    return {
        (number, target): f"{number} -> {target}"
        for number, target in targets.items()
        if not (
            target.startswith(kept)
            or target.endswith(".ttf")
            or (target.startswith("pipe:") and ends[target] == 2)
        )
    }


def files() -> Things:
    """Files in the temporary folder and in the working directory."""
    return {
        (folder, name): f"{folder}/{name}"
        for folder in (tempfile.gettempdir(), os.getcwd())
        for name in os.listdir(folder)
        if name not in STAYS and not name.startswith(".")
    }


def handlers() -> Things:
    """Signal handlers. Spark's session changes the one for Ctrl-C, pytest's timeout the one for SIGALRM."""
    signals = set(signal.valid_signals()) - {signal.SIGINT, signal.SIGALRM}
    handlers = {number: signal.getsignal(number) for number in signals}
    return {(number, handler): f"{number!r} -> {handler!r}" for number, handler in handlers.items()}


OF_A_TEST = (threads, ports, files, handlers)
"""Kinds of things that a test may not leave behind. The check takes less than a millisecond."""
KINDS = (*OF_A_TEST, processes, descriptors)
"""All kinds. A module may leave none of them behind; its tests may share connections and processes."""
