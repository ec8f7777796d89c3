"""Settings that make no sense are refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.settings import Settings


@pytest.mark.parametrize(
    "bad",
    [
        {"host_cores": 0},
        {"host_parts": -1},
        {"chunk_rows": 0},
        {"schedule": "fifo"},
    ],
)
def test_what_a_host_could_not_run_with_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="use"):
        Settings(**bad)
