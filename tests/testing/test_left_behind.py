"""Each kind of thing that is left behind is found and reported, with the test that left it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.testing.left_behind import nothing_left_behind

WAIT = "import sys; sys.stdin.read()"


def leak_process(stack: ExitStack) -> str:
    process = stack.enter_context(subprocess.Popen([sys.executable, "-c", WAIT], stdin=-1))
    return f"processes: {process.pid}"


def leak_orphan(stack: ExitStack) -> str:
    """A process whose parent has ended."""
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {WAIT!r}]).pid)"
    ours = stack.enter_context(subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1))
    assert ours.stdin is not None
    assert ours.stdout is not None
    pid = int(ours.stdout.readline())
    ours.wait()
    stack.callback(psutil.Process(pid).wait)
    stack.callback(ours.stdin.close)
    return f"processes: {pid}"


def leak_thread(stack: ExitStack) -> str:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="a-leaked-thread", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(ended.set)
    return "threads: a-leaked-thread"


def leak_port(stack: ExitStack) -> str:
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"ports: 127.0.0.1:{listening.getsockname()[1]}"


def leak_descriptor(stack: ExitStack) -> str:
    number = os.open(os.devnull, os.O_RDONLY)
    stack.callback(os.close, number)
    return f"descriptors: {number} -> /dev/null"


def leak_file(stack: ExitStack) -> str:
    return f"files: {stack.enter_context(tempfile.TemporaryDirectory(prefix='penstock-'))}"


def leak_file_here(stack: ExitStack) -> str:
    file = Path.cwd() / "left-here"
    file.touch()
    stack.callback(file.unlink)
    return f"files: {file}"


def leak_handler(stack: ExitStack) -> str:
    stack.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    return "handlers: <Signals.SIGUSR1: 10> -> <Handlers.SIG_IGN: 1>"


@pytest.mark.parametrize(
    "leak",
    [
        leak_process,
        leak_orphan,
        leak_thread,
        leak_port,
        leak_descriptor,
        leak_file,
        leak_file_here,
        leak_handler,
    ],
)
def test_what_is_left_behind_is_told(
    leak: Callable[[ExitStack], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        ExitStack() as stack,
        pytest.raises(pytest.fail.Exception) as failed,
        nothing_left_behind("test_of_somebody", patience_s=0.1),
    ):
        text = leak(stack)
    assert "test_of_somebody left behind:" in str(failed.value)
    assert f"\n  {text}" in str(failed.value)


def test_what_goes_in_time_is_not_left_behind() -> None:
    with nothing_left_behind("test_of_somebody"):
        threading.Timer(0.1, lambda: None).start()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_the_check_is_on_for_every_test(request: pytest.FixtureRequest) -> None:
    assert {"_leaves_nothing_behind", "_module_leaves_nothing_behind"} <= set(request.fixturenames)
