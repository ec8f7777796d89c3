"""Silence as a watch counts it."""

from __future__ import annotations

import random

from penstock.wire.silence import Silences

TICK, LIMIT = 500, 5_000


def test_a_silent_one_is_noticed_in_time_and_others_are_not() -> None:
    """Ticks come when they come; heartbeats of the living do, too."""
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


def test_whoever_was_stopped_itself_has_not_heard_silence() -> None:
    watch = Silences[str](TICK)
    watch.tick(0, {"host": 1})
    assert watch.tick(20_000, {"host": 1}) == {"host": 2 * TICK}
    assert watch.tick(20_500, {"host": 2}) == {"host": 0}


def test_a_new_one_starts_from_nothing_and_one_that_left_is_forgotten() -> None:
    watch = Silences[str](TICK)
    watch.tick(0, {"a": 1})
    watch.tick(TICK, {"a": 1})
    assert watch.tick(2 * TICK, {"b": 1}) == {"b": 0}
    assert watch.tick(3 * TICK, {"a": 1, "b": 1}) == {"a": 0, "b": TICK}
