"""A check that nothing is left behind: processes, threads, ports, descriptors, files, signal handlers.

What is there afterwards and was not before is left behind. Spark's JVM, its Python workers and the
threads that talk to it stay by design; a host that still listens in such a worker does not.
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
"""An environment variable that tells the processes of a run of tests, whatever became of their parents."""
PATIENCE_S = 10.0
"""Seconds that what was told to end may take."""
STAYS = {"artifacts", "derby.log", "metastore_db", "spark-warehouse", "__pycache__"}
"""What Spark and Python make in a working directory."""

Things = Mapping[Hashable, str]
"""What there is of one kind: identity -> the words that name it in a message."""


@contextmanager
def nothing_left_behind(
    by: str, *kinds: Callable[[], Things], patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Fail if anything of these kinds, or else of any, is left behind; `by` names who would be to blame."""
    kinds = kinds or KINDS
    before = {kind: kind() for kind in kinds}
    yield
    left, until = _new(before), time.monotonic() + patience_s
    if left:
        gc.collect()  # what nobody holds any more is not left behind
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
    """Processes of this run; of Spark's Python workers only those that a host still listens in."""
    found: dict[Hashable, str] = {}
    for process in {*psutil.Process().children(), *_marked()}:
        with suppress(psutil.Error):
            words = f"{process.pid} ({process.status()}) {' '.join(process.cmdline())[:200]}"
            if process.name() == "java":
                continue
            if all(above.name() != "java" for above in process.parents()):
                found[process] = words
            elif any(one.status == psutil.CONN_LISTEN for one in process.net_connections("inet")):
                found[process] = f"a host in {words}"
    return found


def _marked() -> Iterator[psutil.Process]:
    """Processes that have inherited this run's mark, where the system tells."""
    mark = f"{MARK}={os.environ[MARK]}\0".encode()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                yield psutil.Process(pid)


_NEVER_BACK = "kafka-transaction"
"""A call that librdkafka may not come back from when brokers were away (`live/sinks/kafka.py`): its thread
waits until the process ends."""


def threads() -> Things:
    """Python's threads, without those of native pools, those in which only Spark's code runs, and those that
    librdkafka holds for ever."""
    found: dict[Hashable, str] = {}
    frames = sys._current_frames()
    for thread in threading.enumerate():
        files, frame = [], frames.get(thread.ident or 0)
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        of_spark = any("/py4j/" in file or "/pyspark/" in file for file in files)
        if of_spark and not any("/penstock/" in file for file in files):
            continue
        if not isinstance(thread, threading._DummyThread) and thread.name != _NEVER_BACK:
            found[thread] = thread.name
    return found


def ports() -> Things:
    """Ports that this process listens on, without the one on which Spark's JVM calls it."""
    connections = psutil.Process().net_connections("inet")
    listening = {one.laddr for one in connections if one.status == psutil.CONN_LISTEN}
    gateway = SparkContext._gateway
    called_by_spark = vars(gateway).get("_callback_server") if gateway else None
    return {
        address: f"{address.ip}:{address.port}"
        for address in listening
        if not called_by_spark or called_by_spark.server_socket.getsockname()[1] != address.port
    }


def descriptors() -> Things:
    """Open files, sockets and pipes of this process, where the system lists them.

    Without those that gRPC (events) and Arrow (a pipe to itself) keep for as long as they live; and
    without sockets and pipes where there is a Spark session: it keeps a pool of them to its JVM.
    """
    kept = ("anon_inode:", "socket:", "pipe:") if SparkContext._gateway else ("anon_inode:",)
    found, folder = {}, Path("/proc/self/fd")
    for number in os.listdir(folder) if folder.exists() else ():
        with suppress(OSError):
            found[number] = os.readlink(folder / number)
    ends = Counter(found.values())
    return {
        (number, target): f"{number} -> {target}"
        for number, target in found.items()
        if not (target.startswith(kept) or (target.startswith("pipe:") and ends[target] == 2))
    }


def files() -> Things:
    """What lies in the temporary folder and in the working directory."""
    return {
        (folder, name): f"{folder}/{name}"
        for folder in (tempfile.gettempdir(), os.getcwd())
        for name in os.listdir(folder)
        if name not in STAYS and not name.startswith(".")
    }


def handlers() -> Things:
    """What signals are handled by. Spark's session changes that of Ctrl-C, pytest's clock that of SIGALRM."""
    signals = set(signal.valid_signals()) - {signal.SIGINT, signal.SIGALRM}
    found = {one: signal.getsignal(one) for one in signals}
    return {(one, handler): f"{one!r} -> {handler!r}" for one, handler in found.items()}


OF_A_TEST = (threads, ports, files, handlers)
"""What a test may not leave to the next one. It takes less than a millisecond to look at."""
KINDS = (*OF_A_TEST, processes, descriptors)
"""What a module may not leave either; its tests may share connections and processes."""
