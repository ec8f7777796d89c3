"""Hosts that change their number of workers all the time, with faults: nothing is lost or repeated."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.host import main
from penstock.runtime import cores
from penstock.runtime.cores import WorkDone
from tests.trials.cluster import SETTINGS
from tests.trials.control_trial import Obedient, control_trial
from tests.trials.one_host_trial import one_host_trial
from tests.trials.trial import Mishap, Turn, trial

# A host's own threads die with an injected fault, as they would with their process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.timeout(120),
]

MOST = 3
FAULTS = (
    Mishap("host.applied", "die"),
    Mishap("host.sealed", "break", 2),
    Mishap("courier.closed", "linger", 2),
)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All choices. Each one is different from the one before, and is made after every run."""
    made: list[int] = []
    next_ones = itertools.cycle((3, 1, 2))

    def choose(now: int, most: int, done: WorkDone) -> int:
        assert (most, now in range(1, MOST + 1)) == (MOST, True)
        made.append(next(next_ones))
        return made[-1]

    monkeypatch.setattr(cores, "workers_for", choose)
    monkeypatch.setattr(cores, "_WORK_S", 0.0)
    monkeypatch.setattr(main, "cores_allowed", lambda: float(MOST))
    return made


@pytest.mark.parametrize("one_host", [False, True], ids=["hosts", "one host"])
def test_faults_while_workers_change(tmp_path: Path, chosen: list[int], one_host: bool) -> None:
    auto = replace(SETTINGS, host_cores="auto", chunk_rows=5)
    store = str(tmp_path)
    with (
        one_host_trial("chain", store, auto)
        if one_host
        else trial("chain", store, settings=auto) as flow
    ):
        for seed in range(4):
            flow.take(Turn(seed, partitions=2, mishaps=FAULTS if seed % 2 else (), reads=2))
        assert flow.fired
        flow.check()
        workers = {host.workers for host in flow.cluster.run([]).hosts}
    assert set(chosen) == {1, 2, 3}
    assert workers <= {1, 2, 3}


def test_the_journal_says_which_hosts_use_more_workers(tmp_path: Path, chosen: list[int]) -> None:
    auto = replace(SETTINGS, host_cores="auto", chunk_rows=5)
    with control_trial("sums", str(tmp_path), Obedient(), hosts=1, settings=auto) as flow:
        for seed in range(3):
            flow.take(Turn(seed, rows=40))
        entries = flow.entries("workers")
    assert entries
    for entry in entries:
        assert entry.text.startswith("sums/0 uses ")
        assert entry.facts["before"] != entry.facts["now"]
