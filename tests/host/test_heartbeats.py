"""When a host ends: on the driver's order, or when the driver is silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.errors import HostLostError, ProtocolError
from penstock.host import main
from penstock.settings import Settings
from penstock.wire.flight import Endpoint

SETTINGS = Settings(heartbeat_ms=500, driver_lost_ms=10_000)


class Turns:
    """A stand-in for the driver that counts heartbeats, with a clock that does not wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], bool]) -> None:
        self.turns, self.now_ms, self._call = 0, 0.0, call
        monkeypatch.setattr(time, "monotonic", lambda: self.now_ms / 1000)
        self.ended = cast(threading.Event, self)

    def wait(self, seconds: float) -> bool:
        self.now_ms += seconds * 1000
        return self.turns >= 1_000

    def call(self, action: str, timeout_ms: int, **facts: Any) -> bool:
        assert (action, timeout_ms) == ("heartbeat", 1_000)
        self.turns += 1
        return self._call(self.turns)

    def run(self) -> bool:
        return main.keep_known(cast(Endpoint, self), SETTINGS, [("sum/0", "a")], self.ended)


def test_a_driver_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(turn: int) -> bool:
        if turn > 3:
            raise HostLostError("no answer")
        return True

    host = Turns(monkeypatch, silent)
    assert not host.run()
    assert 10_000 < host.now_ms - 3 * SETTINGS.heartbeat_ms <= 11_000


def test_a_host_that_was_stopped_itself_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not heard from the driver for a minute, but it has not asked either."""

    def away(turn: int) -> bool:
        if turn % 10 == 0:
            host.now_ms += 60_000
            raise HostLostError("no answer")
        return True

    host = Turns(monkeypatch, away)
    assert host.run()
    assert host.turns == 1_000, "it goes on until it is told to end"


def test_a_driver_that_does_not_count_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Turns(monkeypatch, lambda turn: turn < 3)
    assert host.run()
    assert host.turns == 3


def test_a_driver_that_does_not_understand(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(turn: int) -> bool:
        raise ProtocolError("no such action")

    host = Turns(monkeypatch, refuses)
    assert host.run()
    assert host.turns == 1
