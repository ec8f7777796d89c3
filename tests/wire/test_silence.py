"""Measuring the silence of peers."""

from __future__ import annotations

import random

from penstock.wire.silence import Silences

TICK, LIMIT = 500, 5_000


def test_only_a_silent_peer_is_noticed_and_in_time() -> None:
    """Ticks come at irregular times."""
    pick = random.Random(3)
    watch, now, beats = Silences[str](TICK), 0.0, 0
    noticed = None
    while noticed is None:
        now += TICK * pick.uniform(0.8, 1.9)
        beats += 1
        silent = watch.tick(now, {"stopped": 7, "alive": beats})
        assert silent["alive"] == 0
        if silent["stopped"] > LIMIT:
            noticed = now
    assert LIMIT < noticed < LIMIT + 2 * 1.9 * TICK


def test_a_pause_of_the_watch_is_not_silence_of_others() -> None:
    watch = Silences[str](TICK)
    watch.tick(0, {"host": 1})
    assert watch.tick(20_000, {"host": 1}) == {"host": 2 * TICK}
    assert watch.tick(20_500, {"host": 2}) == {"host": 0}


def test_a_new_peer_starts_at_zero_and_one_that_left_is_forgotten() -> None:
    watch = Silences[str](TICK)
    watch.tick(0, {"a": 1})
    watch.tick(TICK, {"a": 1})
    assert watch.tick(2 * TICK, {"b": 1}) == {"b": 0}
    assert watch.tick(3 * TICK, {"a": 1, "b": 1}) == {"a": 0, "b": TICK}
