"""What all proofs of exactly once have in common."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # A host's own threads die with an injected fault, as they would with their process.
            ignored = "ignore::pytest.PytestUnhandledThreadExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))
            item.add_marker(pytest.mark.timeout(120))
