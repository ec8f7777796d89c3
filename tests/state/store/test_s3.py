"""The store on S3, as a server on this machine has it (make test-s3)."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count

import pyarrow.fs as pafs
import pytest

from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.errors import CheckpointError, StoreError
from penstock.state.store import files
from penstock.state.store.places import Place, below, s3_options
from penstock.state.store.retention import clean
from penstock.state.store.store import Layout, Store
from tests.state.store.history import History
from tests.state.store.test_ownership import CHANGES, delta, manifest

_numbers = count()

pytestmark = [
    pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed: see make test-s3"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind() -> None:
    """AWS's client keeps a connection for its next use, until the process ends."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server of S3 with a bucket `bucket`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            while True:
                with suppress(urllib.error.URLError):
                    urllib.request.urlopen(f"{address}/moto-api/data.json", timeout=5).close()
                    break
                assert server.poll() is None
                time.sleep(0.05)
            options = dict(settings(address)[0])
            pafs.S3FileSystem(**options, allow_bucket_creation=True).create_dir("bucket")
            yield address
        finally:
            server.terminate()


def settings(endpoint: str) -> tuple[tuple[tuple[str, object], ...], list[str]]:
    return s3_options(
        {
            "access.key": "key",
            "secret.key": "secret",
            "endpoint": endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
        }
    )


@pytest.fixture
def store(endpoint: str) -> Store:
    folder = f"s3a://bucket/flow%20{next(_numbers)}"
    return Store(Place(below(folder, "penstock"), settings(endpoint)[0]), lambda _: None)


def starts(store: Store) -> Store:
    made = Store(store.place, lambda _: None)
    made.claim(0)
    return made


def test_a_history_of_epochs_compactions_and_clean_ups(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_AT_ONCE", 100)  # so that files are read in pieces
    history = History(store)
    for epoch in range(6):
        history.epoch(dict.fromkeys(range(epoch, 60, 5), (epoch, "x")))
        if epoch % 2:
            history.compact(least=500)
    history.epoch({1: None})
    assert clean(store, keep=2, newest=6).files > 0
    for version in (5, 6):
        history.check(version)
    assert store.damage(6) == ""


def test_a_uri_with_a_query(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    address = endpoint.removeprefix("http://")
    query = f"endpoint_override={address}&scheme=http&region=us-east-1"
    folder = f"s3://bucket/by-query/?{query}"
    Store(below(folder, "penstock")).write_flow({"id": "flow", "format": 2, "steps": []})
    store, facts = open_checkpoint(folder)
    assert facts["id"] == "flow"
    assert store.uri == f"s3://bucket/by-query/penstock?{query}"
    assert Store(Place(store.uri, settings(endpoint)[0])).read_flow() == facts


@pytest.mark.parametrize("change", CHANGES)
def test_an_older_start_changes_nothing_any_more(store: Store, change: str) -> None:
    old = starts(store)
    for epoch in range(2):
        old.write_manifest(manifest(epoch, delta(old, epoch, 1)))
    new = starts(store)
    with pytest.raises(CheckpointError, match="has started a flow"):
        CHANGES[change](old)
    CHANGES[change](new)


def test_of_two_that_began_at_the_same_moment_one_stops(store: Store) -> None:
    """S3 as pyarrow has it cannot exclude others: both are told that the generation is theirs."""
    one, other = starts(store), Store(store.place)
    assert one.owner is not None
    mine = store.files.read("owners/000000000000.json")
    assert mine is not None
    store.files.write("owners/000000000000.json", mine.replace(one.owner.mark.encode(), b"other"))
    with pytest.raises(CheckpointError, match="has started a flow"):
        one.write_layout(Layout(0, "a", {}))
    assert other.read_flow() is None


def test_a_host_sees_the_same_bucket(store: Store) -> None:
    own = starts(store)
    Store(own.place, lambda _: None).must_see("sum/0")


def test_a_bucket_that_is_not_there_is_told_at_once(endpoint: str) -> None:
    pauses: list[float] = []
    store = Store(Place("s3://nosuchbucket/x", settings(endpoint)[0]), pauses.append)
    with pytest.raises(StoreError, match="cannot write"):
        store.write_flow({"id": "x"})
    assert pauses == []
