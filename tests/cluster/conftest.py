"""A standalone cluster per module, and a separate one for tests that break it."""

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
    """A flow that the test may start; it ends with the test."""
    process = FlowProcess(cluster.master, tmp_path)
    yield process
    process.end()
