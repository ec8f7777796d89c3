"""The session counters of `bench pipeline` find the same sessions."""

from __future__ import annotations

import random

import pytest

from penstock.testing import ProcessorTester
from penstock_bench.pipeline.sessions import GAP_MS, PENSTOCK


def _expected(clicks: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The sessions of clicks (key, time), which are in order of time."""
    open_: dict[int, tuple[int, int]] = {}
    ended = []
    for key, at in clicks:
        n, last = open_.get(key, (0, at))
        if n and at > last + GAP_MS:
            ended.append((key, n, last))
            n = 0
        open_[key] = n + 1, at
    return sorted(ended + [(key, *session) for key, session in open_.items()])


@pytest.mark.parametrize("form", PENSTOCK)
def test_every_form_finds_the_sessions(form: str) -> None:
    rng = random.Random(3)
    tester = ProcessorTester(PENSTOCK[form](), "k long, at long", "k")
    clicks, found = [], []
    for epoch in range(15):
        times = sorted(epoch * GAP_MS + rng.randrange(GAP_MS) for _ in range(40))
        rows = [(rng.randrange(40), at) for at in times]
        clicks += rows
        found += tester.feed(rows)
        found += tester.set_watermark(times[-1])
        if epoch == 8:
            tester.restart()
    assert tester.keys_held < 41
    assert sorted([*found, *tester.finish()]) == _expected(clicks)
    assert tester.keys_held == 0
