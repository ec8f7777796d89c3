"""The hosts' seal and the manifest are prepared while the sink works. They count only if the run succeeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HostLostError
from penstock.faults import Fault, armed
from penstock.testing.thread_hosts import open_store
from tests.courier.test_report import FLOW, PARTS
from tests.trials.cluster import MiniCluster, cluster


def totals(on: MiniCluster) -> list[str]:
    """All output rows so far, in any order."""
    return sorted(str(row) for epoch in sorted(on.sink) for row in on.sink[epoch])


@pytest.mark.parametrize("point", ["driver.written", "host.confirm"])
def test_a_run_that_fails_when_all_is_prepared_leaves_nothing(tmp_path: Path, point: str) -> None:
    """The sink's job fails when all hosts have sealed and the manifest is written ahead; or a host does not
    answer, so that nothing is prepared and the driver asks again."""

    def lose(_: Mapping[str, Any]) -> None:
        raise HostLostError("this run has lost something")

    with cluster(FLOW, str(tmp_path / "right")) as right:
        for _ in range(3):
            right.run(PARTS)
        wanted = totals(right)
    with cluster(FLOW, str(tmp_path / "store")) as on:
        on.run(PARTS)
        with armed(Fault(point, do=lose, where={"epoch": 1, "run": 0})) as fault:
            progress = on.run(PARTS)
        assert fault.fired
        assert progress.runs == (2 if point == "driver.written" else 1)
        on.run(PARTS)
        assert totals(on) == wanted
        store = open_store(on.store)
        manifest = store.read_manifest(1)
        assert manifest is not None
        assert manifest.run == progress.runs - 1
        assert not [file.name for file in store.files.below("manifests") if "tmp" in file.name]
