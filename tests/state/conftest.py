"""Backends on which all tests of the store run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from penstock.state.store import files
from penstock.state.store.places import Place
from penstock.state.store.s3 import s3_options
from penstock.state.store.store import Store
from penstock_bench.s3_faults import FaultProxy, S3Fault, faulty
from penstock_bench.s3_server import S3Server, has_s3
from tests.testing.left_behind import KINDS, descriptors, nothing_left_behind

_numbers = count()

FAULTS = (
    S3Fault("error", share=0.01),
    S3Fault("throttle", share=0.01),
    S3Fault("reset", share=0.01),
    S3Fault("lost", share=0.01),
    S3Fault("cut", share=0.01, method="GET"),
    S3Fault("slow", share=0.01, seconds=0.3),
)
"""Faults of the proxy in front of the store "faulty s3"."""


@pytest.fixture(scope="session", autouse=True)
def uses_s3(request: pytest.FixtureRequest) -> bool:
    """Whether there are tests on S3. Starts the server before the first module, so that no module is blamed
    for leaving it behind."""
    marked = any(item.get_closest_marker("s3") for item in request.session.items)
    used = marked or any(
        "proxy" in getattr(item, "fixturenames", ()) for item in request.session.items
    )
    if used and (marked or has_s3()):
        request.getfixturevalue("proxies")
    return used


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind(request: pytest.FixtureRequest, uses_s3: bool) -> Iterator[None]:
    """Check that a module leaves nothing behind, except connections of AWS's client, which stay open."""
    kinds = [kind for kind in KINDS if not (uses_s3 and kind is descriptors)]
    with nothing_left_behind(request.node.nodeid, *kinds):
        yield


@pytest.fixture(scope="session")
def proxies(s3: S3Server) -> Iterator[FaultProxy]:
    with faulty(s3.endpoint) as made:
        yield made


@pytest.fixture
def proxy(proxies: FaultProxy) -> Iterator[FaultProxy]:
    """A proxy in front of the server, without faults unless a test orders them."""
    proxies.clear()
    yield proxies
    proxies.clear()
    proxies.cut()


def on_s3(s3: S3Server, endpoint: str = "") -> Place:
    """The place of a new, empty folder on the server."""
    settings = s3_options(s3.settings(endpoint))[0]
    return Place(f"s3://{s3.bucket}/flow%20{next(_numbers)}/penstock", settings)


@pytest.fixture(
    params=[
        "folder",
        "memory",
        "far",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("faulty s3", marks=pytest.mark.s3),
    ]
)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """An empty store: in a folder, in memory, read in pieces, on S3, or on an S3 that often fails."""
    if request.param == "folder":
        yield Store(str(tmp_path))
    elif request.param == "memory":
        yield Store(f"memory://test-{next(_numbers)}")
    elif request.param == "s3":
        yield Store(on_s3(request.getfixturevalue("s3")))
    elif request.param == "far":
        far = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        monkeypatch.setattr(files, "open_filesystem", lambda _: (far, "checkpoint"))
        monkeypatch.setattr(files, "_AT_ONCE", 0)
        yield Store("far://checkpoint")
    else:
        proxy: FaultProxy = request.getfixturevalue("proxy")
        proxy.order(*FAULTS)
        yield Store(on_s3(request.getfixturevalue("s3"), proxy.endpoint))
