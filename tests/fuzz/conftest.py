"""Memory is traced for a whole module, until its servers have ended."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _traced() -> Iterator[None]:
    yield
    tracemalloc.stop()
