"""Detection and splitting of hot keys over the epochs of a step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.control.diagnose.hot_keys import HotKeys, find
from penstock.model import StepId
from penstock.wire.report import HotKeyCount

STEP = StepId("sum")
SERVICE, MARGIN = 1_000.0, 0.2
HOLD_MS = 60_000.0


class Stream:
    """A step with four slots. Slot 2 has 2,000 records/s, a share of them for one key."""

    def __init__(self, merges: bool, share: float = 0.9) -> None:
        self.hot = HotKeys(STEP, 4, merges, HOLD_MS)
        self.share, self.now_ms = share, 0.0
        self.rate = np.array([100.0, 0.0, 2_000.0, 300.0])

    def epoch(self, dry_run: bool = False, service: float = SERVICE) -> list[str]:
        """Run an epoch in which couriers count keys of watched slots. Returns the hot keys after it."""
        self.now_ms += 1_000
        split, watched = self.hot.two_stage, self.hot.watched
        rate = self.rate.copy()
        if split:
            rate[2] *= 1 - self.share
        load = rate.astype(np.int64)
        counts = [
            HotKeyCount(step, slot, key, count)
            for slot in watched
            for step, key, count in (
                (STEP, "user=42", int(load[slot] * self.share / 2)),
                ("other", "user=42", 10**6),
                (STEP, "user=42", int(load[slot] * self.share / 2)),
                (STEP, "user=7", 50),
            )
        ]
        self.hot.note(counts, load)
        hot_slots = np.flatnonzero(rate > (1 - MARGIN) * service).tolist()
        keys = self.hot.look(self.now_ms, hot_slots, rate, service, MARGIN, dry_run)
        assert keys == self.hot.keys
        return [key.key for key in keys]


def test_a_hot_slot_is_watched_then_its_key_is_named() -> None:
    stream = Stream(merges=False)
    assert not stream.hot.watched
    assert stream.epoch() == []
    assert stream.hot.watched == (2,)
    assert stream.epoch() == ["user=42"]
    (key,) = stream.hot.keys
    assert (key.step, key.slot) == (STEP, 2)
    assert key.rate == pytest.approx(1_800)
    assert key.share_of_host == pytest.approx(1.8)
    assert key.facts()["text"] == key.text
    assert "180 %" in key.text


def test_a_hot_key_that_cannot_be_split_is_reported_while_it_lasts() -> None:
    stream = Stream(merges=False)
    for _ in range(9):
        keys = stream.epoch()
    assert keys == ["user=42"]
    assert "no treatment helps" in stream.hot.keys[0].text
    assert not stream.hot.two_stage
    stream.rate[2] = 200
    assert stream.epoch() == []
    for _ in range(10):
        stream.epoch()
    assert stream.hot.watched == ()
    # the slot is hot again, but the counts of its keys are too old
    stream.rate[2] = 2_000
    assert stream.epoch() == []
    stream.share = 0.1
    assert stream.epoch() == []


def test_a_hot_key_that_can_be_split_stays_split_for_a_while() -> None:
    """Otherwise it would seem cool as soon as it is split, and hot as soon as it is not."""
    stream = Stream(merges=True)
    splits = []
    for _ in range(400):
        stream.epoch()
        splits.append(stream.hot.two_stage)
    begun = [n for n in range(1, 400) if splits[n] and not splits[n - 1]]
    ended = [n for n in range(1, 400) if not splits[n] and splits[n - 1]]
    assert [end - begin for begin, end in zip(begun, ended, strict=False)] == [60, 120]
    # tried without splitting, it is split again after two more epochs
    assert [b - e for e, b in zip(ended, begun[1:], strict=False)] == [2, 2]
    assert stream.hot.keys[0].key == "user=42"
    assert "is split in two stages" in stream.hot.keys[0].text
    assert stream.hot.watched == ()


def test_a_key_that_has_cooled_down_is_left_alone() -> None:
    stream = Stream(merges=True)
    for _ in range(3):
        stream.epoch()
    assert stream.hot.two_stage
    stream.rate[2] = 500
    for _ in range(62):
        stream.epoch()
    assert not stream.hot.two_stage
    assert stream.hot.keys == ()


def test_a_dry_run_only_reports() -> None:
    stream = Stream(merges=True)
    stream.epoch(dry_run=True)
    for _ in range(5):
        assert stream.epoch(dry_run=True) == ["user=42"]
        assert not stream.hot.two_stage
    assert "would be split" in stream.hot.keys[0].text
    assert stream.epoch() == ["user=42"]
    assert stream.hot.two_stage


def test_several_keys_that_fit_are_not_hot() -> None:
    stream = Stream(merges=True, share=0.3)
    assert [stream.epoch() for _ in range(5)] == [[]] * 5
    assert stream.hot.watched == (2,)


@pytest.mark.parametrize("service", [math.nan, 0.0])
def test_no_key_is_hot_before_hosts_have_worked(service: float) -> None:
    counts = {(0, "user=42"): 100}
    load, rate = np.array([100]), np.array([1e6])
    assert find(STEP, counts, load, rate, service, MARGIN, merges=True) == ()


def test_the_hottest_comes_first_and_the_margin_counts() -> None:
    counts = {(0, "a"): 81, (0, "b"): 79, (1, "c"): 100}
    load, rate = np.array([160, 90]), np.array([1_600.0, 900.0])
    keys = find(STEP, counts, load, rate, SERVICE, MARGIN, merges=False)
    # the count of a key exceeds that of its slot: it has all of the slot, not more
    assert [(key.key, key.rate) for key in keys] == [("c", 900.0), ("a", 810.0)]
