"""Calls of librdkafka that do not return after an outage of brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.live.sinks import kafka


class Refused(Exception):
    pass


class Producer:
    """A producer whose brokers are down for some checks, and then answer."""

    def __init__(self, away: int) -> None:
        self.away, self.looks = away, 0

    def list_topics(self, timeout: float) -> None:
        self.looks += 1
        if self.looks <= self.away:
            raise Refused


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(kafka, "_LOOK_EACH_S", 0.01)
    held = threading.Event()
    yield held
    held.set()


def test_a_call_is_abandoned_when_brokers_have_been_back_for_a_while(
    stuck: threading.Event,
) -> None:
    producer = Producer(away=7)
    assert not kafka._comes_back(stuck.wait, producer, Refused)
    assert producer.looks == 7 + kafka._LOOKS


def test_a_call_is_abandoned_when_brokers_stay_down(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_WAIT_S", 0.1)
    began = time.monotonic()
    assert not kafka._comes_back(stuck.wait, Producer(10**9), Refused)
    assert time.monotonic() - began >= 0.1


def test_a_call_that_returns_raises_its_own_error(stuck: threading.Event) -> None:
    def refuse() -> None:
        raise Refused

    assert kafka._comes_back(lambda: None, Producer(0), Refused)
    with pytest.raises(Refused):
        kafka._comes_back(refuse, Producer(0), Refused)
