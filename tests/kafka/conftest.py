"""A real Kafka broker for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import SettingError
from penstock_bench.broker import Broker, running_broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    try:
        started = running_broker()
        broker = started.__enter__()
    except SettingError as missing:
        pytest.skip(f"no broker: {missing}")
    yield broker
    started.__exit__(None, None, None)


@pytest.fixture
def topic(kafka: Broker, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions for one test."""
    return kafka.create(request.node.name.replace("[", "-").replace("]", ""), 3)
