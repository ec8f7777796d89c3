"""The backends that every behaviour of the store is shown on."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from penstock.state.store import files
from penstock.state.store.store import Store

_twins = count()


@pytest.fixture(params=["folder", "memory", "far"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store: memory-mapped, in memory, or read piece by piece."""
    if request.param == "folder":
        return Store(str(tmp_path))
    if request.param == "memory":
        return Store(f"memory://test-{next(_twins)}")
    far = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    monkeypatch.setattr(files, "open_filesystem", lambda _: (far, "checkpoint"))
    monkeypatch.setattr(files, "_AT_ONCE", 0)
    return Store("far://checkpoint")
