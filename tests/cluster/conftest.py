"""A standalone cluster for the tests of a module, and one of its own for tests that break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.console.cluster.cluster import Cluster, Shape, running_cluster
from tests.cluster.flows import FlowProcess

SHAPE = Shape(workers=2, cores=6, memory="1g")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(SHAPE) as started:
        yield started


@pytest.fixture
def flow(cluster: Cluster, tmp_path: Path) -> Iterator[FlowProcess]:
    """Where a test may start a flow, which ends with it."""
    process = FlowProcess(cluster.master, tmp_path)
    yield process
    process.end()
