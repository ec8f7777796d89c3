"""Trust in burst workers: when they get no rows because they do not answer."""

from __future__ import annotations

from penstock.offload.policy.burst import Trust


def test_burst_workers_that_answer_keep_their_trust() -> None:
    trust = Trust()
    assert not any(trust.note(float(at), 100, at % 50) for at in range(100))
    assert trust.at(100.0)


def test_one_bad_epoch_is_bad_luck() -> None:
    trust = Trust()
    for at in range(20):
        assert not trust.note(float(at), 100, 100 if at % 2 else 0)
    assert trust.at(20.0)


def test_epochs_without_rows_say_nothing() -> None:
    trust = Trust()
    trust.note(0.0, 100, 100)
    for at in range(10):
        assert not trust.note(float(at), 0, 0)
    assert trust.note(11.0, 100, 100)


def test_each_pause_is_longer_until_burst_workers_answer() -> None:
    trust, now_ms, pauses = Trust(), 0.0, []
    for _ in range(10):
        while not trust.note(now_ms, 10, 10):
            now_ms += 100.0
        began = now_ms
        while not trust.at(now_ms):
            now_ms += 100.0
        pauses.append(now_ms - began)
    assert pauses == sorted(pauses)
    assert pauses[0] == 1_000.0
    assert pauses[-1] == 300_000.0
    trust.note(now_ms, 10, 0)
    while not trust.note(now_ms, 10, 10):
        now_ms += 100.0
    assert trust.at(now_ms + 1_000.0)
    assert not trust.at(now_ms + 900.0)


def test_one_epoch_is_enough_if_burst_workers_hang() -> None:
    trust = Trust()
    assert trust.note(0.0, 100, 80, hung=True)
    assert not trust.at(500.0)
    assert not Trust().note(0.0, 100, 20, hung=True)  # only a few of them
