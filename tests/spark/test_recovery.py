"""Single parts of a flow die: what must happen, and what must not."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.faults import Fault, InjectedFault, armed
from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import Mishap, Request, Turn, everything, trial

pytestmark = pytest.mark.timeout(60)

UNCOMPACTED = replace(SETTINGS, compact_epochs=1000)


def test_a_host_that_dies_between_epochs_takes_no_other_one_with_it(tmp_path: Path) -> None:
    """The others have sealed the last epoch, and know nothing of the next one yet."""
    with trial("sums", str(tmp_path), hosts=3) as flow:
        flow.take(Turn(1))
        flow.take(Turn(2))
        flow.cluster.jobs.kill("sums/1")
        flow.take(Turn(3))
        assert flow.cluster.deaths == Counter({"sums/1": 1})


def test_a_courier_that_finds_a_host_dead_hangs_up_on_the_others(tmp_path: Path) -> None:
    """A channel that was left open would hold a thread of its host for an hour."""
    with trial("sums", str(tmp_path), hosts=3) as flow:
        flow.take(Turn(1))
        flow.cluster.jobs.kill("sums/2")
        flow.take(Turn(2))
        began = time.monotonic()
    assert time.monotonic() - began < SETTINGS.exchange_timeout_ms / 2000


def test_a_host_that_dies_before_it_was_given_slots(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path), hosts=2) as flow:
        flow.take(Turn(1))
        flow.cluster.restart()
        while len(flow.cluster.fleet.ready(flow.cluster.relocation.hosts("sums"))) < 2:
            time.sleep(0.001)
        flow.cluster.jobs.kill("sums/0")
        flow.epoch(everything("sums"))
        assert flow.cluster.deaths["driver"] == 1


@pytest.mark.parametrize("how", ["die", "break"])
def test_a_host_that_fails_while_it_is_given_slots(tmp_path: Path, how: str) -> None:
    with trial("sums", str(tmp_path), hosts=2) as flow:
        for hit in (1, 2):
            assign = Mishap("host.assign", how, hit)  # type: ignore[arg-type]
            flow.epoch(everything("sums"), (assign,))
            flow.epoch(everything("sums"), (Mishap("host.sealed", "die"), assign))
            assert flow.cluster.deaths["driver"] == hit - 1
            flow.cluster.restart()
        flow.check()


@pytest.mark.parametrize("migration", ["lazy", "all_at_once", "pause"])
def test_a_damaged_file_is_told_of(tmp_path: Path, migration: str) -> None:
    """And nothing waits for it."""
    with trial("ledger", str(tmp_path), migration=migration, settings=UNCOMPACTED) as flow:
        for seed in range(3):
            flow.take(Turn(seed))
        for delta in tmp_path.glob("deltas/ledger/*"):
            data = bytearray(delta.read_bytes())
            data[len(data) // 2] ^= 0xFF
            delta.write_bytes(data)
        flow.cluster.restart()
        began = time.monotonic()
        with pytest.raises(CheckpointError, match="deltas/ledger"):
            flow.epoch(everything("ledger"))
        assert time.monotonic() - began < 5


def test_a_host_that_outlives_its_driver_harms_nothing(tmp_path: Path) -> None:
    """It may finish a delta when the epoch was replayed already, with other hosts."""
    with trial("sums", str(tmp_path), hosts=2, settings=UNCOMPACTED) as flow:
        flow.take(Turn(1))
        dying = Mishap("driver.sealed", "die").fault(flow.cluster)
        with armed(dying), pytest.raises(InjectedFault):
            flow.cluster.run(everything("sums"))
        late = {file: file.read_bytes() for file in tmp_path.glob("deltas/sums/*1-0-*")}
        assert late
        flow.cluster.hosts["sums"] = 1
        flow.cluster.restart()
        flow.take(Turn(2))
        for file, data in late.items():
            file.write_bytes(data)
        flow.check()


def test_a_host_that_dies_with_nothing_but_copies(tmp_path: Path) -> None:
    """It owns no slots, so the epoch is committed without waiting for it."""
    with trial("sums", str(tmp_path), hosts=2, migration="all_at_once") as flow:
        flow.take(Turn(1))
        dying = Fault("driver.sealed", do=lambda _: flow.cluster.jobs.kill("sums/1"))
        with armed(dying):
            flow.take(Turn(2, requests=(Request("move", 0, 0, tuple(range(SLOTS))),)))
        assert flow.cluster.deaths == Counter({"sums/1": 1})
        flow.check()
