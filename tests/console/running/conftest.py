"""Fixtures: queries on a checkpoint that are watched and controlled from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.state.store.store import Store
from tests.console.running.steered_query import Serve, SteeredQuery


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"{tmp_path}/penstock")


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    """A function that starts a query on the checkpoint with these steps."""
    started: list[SteeredQuery] = []

    def start(**steps: dict[str, Any]) -> SteeredQuery:
        started.append(SteeredQuery(store, **steps))
        return started[-1]

    yield start
    for query in started:
        query.server.shutdown()
