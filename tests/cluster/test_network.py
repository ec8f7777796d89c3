"""A connection that drops packets is noticed within seconds, and its recovery at once, without Spark."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from penstock_bench.network import Network, not_allowed

pytestmark = pytest.mark.skipif(bool(not_allowed()), reason=not_allowed() or "it can")

PATIENCE_S = 30.0
"""Seconds to wait for a line: enough for a busy machine."""
Fault = Callable[[Network], AbstractContextManager[None]]


class Talk:
    """The output of a client on the left of a server on the right."""

    def __init__(self, network: Network) -> None:
        python, at = [sys.executable, "-m", "tests.cluster.echo"], network.address("right")
        server = network.start(
            "right", [*python, "serve", at, "4711"], stdout=subprocess.PIPE
        ).stdout
        assert server is not None
        assert server.readline() == "there\n"
        talker = network.start(
            "left", [*python, "talk", f"grpc://{at}:4711"], stdout=subprocess.PIPE
        ).stdout
        assert talker is not None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        lines = iter(talker)
        threading.Thread(
            target=lambda: [self._lines.put(line.strip()) for line in lines], daemon=True
        ).start()

    def until(self, line: str) -> float:
        """Wait for a line; return the seconds that it took."""
        began = time.monotonic()
        while self._lines.get(timeout=PATIENCE_S) != line:
            pass
        return time.monotonic() - began

    def silent_for(self, seconds: float) -> bool:
        """Whether no line is printed for this time."""
        try:
            self._lines.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("left", "right") as made:
        yield made


CUTS: dict[str, Fault] = {
    "both ways": lambda network: network.cut("left", "right"),
    "there": lambda network: network.cut_one_way("left", "right"),
    "back": lambda network: network.cut_one_way("right", "left"),
}


@pytest.mark.parametrize(
    "how", ["both ways", *(pytest.param(h, marks=pytest.mark.cluster) for h in ("there", "back"))]
)
def test_a_cut_breaks_a_stream_and_its_end_is_noticed_at_once(network: Network, how: str) -> None:
    talk = Talk(network)
    talk.until("answered")
    with CUTS[how](network):
        took_s = talk.until("broken")
        assert 2 < took_s < 15, "about five seconds; the system alone would need minutes"
    assert talk.until("answered") < 10, "not only when the system or gRPC tries again"


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["slow", "lossy"])
def test_a_bad_link_is_no_cut(network: Network, how: str) -> None:
    talk = Talk(network)
    talk.until("answered")
    slow = network.slow("left", "right", 200)
    with slow if how == "slow" else network.lossy("left", "right", 0.05):
        assert talk.silent_for(10), "calls are answered within their second, the stream holds"


def test_a_network_that_was_left_behind_is_removed() -> None:
    """The process that made it was killed."""
    code = (
        "import os; from penstock_bench.network import Network\n"
        "Network('left').__enter__().start('left', ['sleep', '1000'], stdout=-3, stderr=-3)\n"
        "print(os.getpid(), flush=True); os._exit(9)"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    spaces = ["ip", "netns", "list"]
    there = subprocess.run(spaces, capture_output=True, text=True, check=True).stdout
    assert f"penstock-{left.stdout.strip()}-left" in there
    with Network("right"):
        there = subprocess.run(spaces, capture_output=True, text=True, check=True).stdout
    assert f"penstock-{left.stdout.strip()}-" not in there
