"""Marks and settings of all tests of exactly once."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest

_MANY = 6
"""Number of cases of one test above which `make test` runs about half, and `make test-faults` all."""


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    cases = Counter(item.nodeid.partition("[")[0] for item in own)
    for item in own:
        if cases[item.nodeid.partition("[")[0]] > _MANY and zlib.crc32(item.nodeid.encode()) % 2:
            item.add_marker(pytest.mark.slow)
        # A host's own threads die with an injected fault, as they would with their process.
        ignored = "ignore::pytest.PytestUnhandledThreadExceptionWarning"
        item.add_marker(pytest.mark.filterwarnings(ignored))
        item.add_marker(pytest.mark.timeout(120))
