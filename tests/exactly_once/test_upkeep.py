"""Compaction and clean-up do not wait for each other, and no epoch waits for them, whatever fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.faults import Fault, armed
from penstock.state.store.manifest import Layout
from penstock.state.store.store import Store
from tests.trials.cluster import SETTINGS, MiniCluster
from tests.trials.stories import OFTEN
from tests.trials.trial import Request, Trial, Turn, everything, trial

PATIENT = replace(SETTINGS, compact_epochs=1, compact_stalled_ms=300)
ORPHAN = "runs/sums/000000000000-gone-0.arrow"


def base(on: MiniCluster) -> int:
    """The version at which the next epoch's chain of deltas begins."""
    return on.runner.versions.base


def layout(on: MiniCluster) -> Layout:
    store = Store(on.store)
    return store.read_layout(on.runner.versions.layout)


def until(flow: Trial, condition: Callable[[], bool], epochs: int = 60) -> None:
    """Run epochs until a condition holds."""
    for _ in range(epochs):
        if condition():
            return
        flow.epoch(everything("sums"))
        flow.cluster.await_upkeep()
    raise AssertionError(f"the condition did not hold within {epochs} epochs")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "penstock.store"]


def test_a_host_that_hangs_loses_its_part(tmp_path: Path) -> None:
    """The others continue while it hangs, and the end of the query does not wait for it."""
    with trial("sums", str(tmp_path), hosts=3, settings=PATIENT) as flow:
        stuck = Fault("host.compact", do="hang", where={"host": "sums/1"}, hits=())
        with armed(stuck) as faults:
            flow.take(Turn(1))
            until(flow, lambda: base(flow.cluster) >= 3)
            assert faults.fired
            flow.epoch(everything("sums"))
            began = time.monotonic()
            flow.cluster.restart()
            assert time.monotonic() - began < 5
        flow.check()


def test_a_host_that_is_lost_costs_its_own_part_only(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path), hosts=3, settings=PATIENT) as flow:
        others, died = threading.Event(), threading.Event()

        def die(where: Mapping[str, object]) -> None:
            others.wait(10)
            died.set()
            flow.cluster.kill_host(where)

        with armed(Fault("host.compact", do=die, where={"host": "sums/0"})):
            flow.take(Turn(1))
            compaction = flow.cluster.runner.versions.upkeep._compaction
            assert compaction is not None
            while sum(part.done is not None for part in compaction._parts) < 2:
                time.sleep(0.005)
            made = {part.tag for part in compaction._parts if part.done is not None}
            others.set()
            flow.cluster.await_upkeep()
        assert died.is_set()
        flow.epoch(everything("sums"))
        assert base(flow.cluster) == 0
        tags = {ref.file.split("-")[1] for ref in layout(flow.cluster).refs()}
        assert made < tags, "the parts of the others were not kept"
        assert len(tags) == 3
        flow.check()


def test_slots_that_move_away_take_their_part_with_them(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path), hosts=2, settings=PATIENT) as flow:
        release = threading.Event()
        slow = Fault("host.compact", do=lambda _: _wait(release), where={"host": "sums/0"}, hits=())
        with armed(slow):
            flow.take(Turn(1))
            flow.take(Turn(2, requests=(Request("move", 0, 1, tuple(range(64))),)))
            flow.cluster.await_upkeep()
            until(flow, lambda: base(flow.cluster) >= 0)
            release.set()
        flow.check()


def _wait(release: threading.Event) -> None:
    release.wait(20)


def test_a_slow_compaction_does_not_pile_up(tmp_path: Path) -> None:
    release = threading.Event()
    with trial("sums", str(tmp_path), hosts=2, settings=OFTEN) as flow:
        slow = Fault("host.compact", do=lambda _: _wait(release), hits=())
        with armed(slow) as faults:
            for seed in range(8):
                flow.take(Turn(seed))
            threads = [t for t in threading.enumerate() if t.name == "compactor"]
            assert faults.passed["host.compact"] == len(threads) == 2, "one order for each host"
            assert base(flow.cluster) == -1
            release.set()
            flow.cluster.await_upkeep()
        until(flow, lambda: base(flow.cluster) >= 7)
        flow.check()


def test_clean_up_goes_on_without_compaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both failures are logged, once when they begin and once when they end."""
    with trial("sums", str(tmp_path), settings=OFTEN) as flow:
        store, on = Store(str(tmp_path)), flow.cluster
        with armed(Fault("host.compact", do=OSError, hits=())):
            flow.take(Turn(1))
            flow.take(Turn(2))
            orphans = (ORPHAN, f"{ORPHAN}.7-1.tmp")
            for name in orphans:
                store.files.write(name, b"orphan")
            until(flow, lambda: not any(map(store.files.exists, orphans)))
            assert "could not be compacted" in on.runner.upkeep_trouble
            assert base(on) == -1
            assert len(lines(caplog)) == 1
        until(flow, lambda: base(on) >= 0)
        assert on.runner.upkeep_trouble == ""
        assert len(lines(caplog)) == 2
        assert all(r.levelno == logging.WARNING for r in caplog.records if "store" in r.name)
        flow.check()


def test_compaction_goes_on_without_clean_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trial("sums", str(tmp_path), settings=OFTEN) as flow:
        on = flow.cluster
        with armed(Fault("driver.clean", do=OSError, hits=())):
            flow.take(Turn(1))
            until(flow, lambda: base(on) >= 4)
            assert "could not be cleaned up" in on.runner.upkeep_trouble
            assert len(Store(on.store).epochs()) > 4
        until(flow, lambda: len(Store(on.store).epochs()) <= 4)
        assert on.runner.upkeep_trouble == ""
        assert len(lines(caplog)) == 2
        flow.check()


def test_a_layout_that_fails_is_made_of_the_same_parts(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path), settings=OFTEN) as flow:
        on = flow.cluster
        with armed(Fault("driver.layout", do=OSError), Fault("host.compact", hits=(1000,))) as seen:
            flow.take(Turn(1))
            on.await_upkeep()
            files = seen.passed["host.compact"]
            assert "could not be compacted" in on.runner.upkeep_trouble
            flow.take(Turn(2))
            on.await_upkeep()
            assert seen.passed["host.compact"] == files
        flow.take(Turn(3))
        assert base(on) == 0
        flow.check()
