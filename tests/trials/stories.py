"""Stories of epochs with requests and mishaps, drawn by hypothesis or at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import MEMORY, MIGRATIONS, POINTS, Mishap, Request, Turn, hows

OFTEN = replace(SETTINGS, compact_epochs=1)
"""Settings with which every epoch starts a compaction."""
TIGHT = replace(OFTEN, host_staged_mb=0.0015)
"""Settings with which hosts can also stage hardly more than one channel."""
NEEDS: dict[str, dict[str, Any]] = {
    "host.began": {"migration": "lazy(0)"},
    "host.fetch": {"migration": "lazy(0)"},
    "host.fetched": {"migration": "lazy(0)"},
    "host.serve": {"migration": "lazy(0)"},
    "host.trickle": {"migration": "all_at_once"},
    "host.install": {"migration": "all_at_once"},
}
"""Cluster options with which a point is passed when slots move."""
GAPS_MS = (500, 1000, 1000, 3000)
"""Milliseconds between epochs of event-time flows."""


# Drawn by hypothesis

cluster_options = st.fixed_dictionaries(
    {
        "hosts": st.integers(1, 3),
        "migration": st.sampled_from(MIGRATIONS),
        "memory_limit": st.sampled_from(MEMORY),
    }
)


KINDS = (
    "move", "keys", "split", "scatter", "unite", "scale", "migration", "memory", "kill", "leave",
    "restart",
)  # fmt: skip


def drawn_turns(
    points: Iterable[str] = POINTS,
    rows: Sequence[int] = (20, 5, 0),
    gaps_ms: Sequence[int] = (100, 1000),
) -> st.SearchStrategy[Turn]:
    """Epochs of rows, with requests between them and faults at these points."""
    requests = st.builds(
        Request,
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.integers(0, 5),
        st.sets(st.integers(0, SLOTS - 1), min_size=1).map(lambda slots: tuple(sorted(slots))),
    )
    mishaps = st.sampled_from(
        [(point, how) for point in points for how in (*hows(point), "slow")]
    ).flatmap(lambda at: st.builds(Mishap, st.just(at[0]), st.just(at[1]), st.integers(1, 4)))
    return st.builds(
        Turn,
        seed=st.integers(0, 1 << 16),
        partitions=st.integers(1, 3),
        requests=st.lists(requests, max_size=2).map(tuple),
        mishaps=st.lists(mishaps, max_size=3).map(tuple),
        gap_ms=st.sampled_from(gaps_ms),
        reads=st.integers(1, 2),
        rows=st.sampled_from(rows),
    )


# At random

REQUESTS = (*KINDS, "move", "scale", "keys", "split", "scatter")


def random_request(pick: random.Random, calm: bool) -> Request:
    kind = pick.choice(("move", "move", "keys", "split", "scatter") if calm else REQUESTS)
    slots = tuple(pick.sample(range(SLOTS), pick.randint(1, SLOTS)))
    return Request(kind, pick.randrange(2), pick.randrange(6), slots)  # type: ignore[arg-type]


def random_mishap(pick: random.Random, calm: bool) -> Mishap:
    """A random mishap. A calm one kills nothing, so that hosts live long and may hold outdated state."""
    while True:
        point = pick.choice(list(POINTS))
        how = pick.choice((*hows(point), *hows(point), "slow"))
        if not calm or how != "die":
            return Mishap(point, how, pick.choice((1, 1, 1, 2, 3, 5)))


def random_turn(pick: random.Random, mishaps: int, requests: int, calm: bool = False) -> Turn:
    return Turn(
        seed=pick.randrange(1 << 30),
        partitions=pick.randint(1, 3),
        requests=tuple(random_request(pick, calm) for _ in range(requests)),
        mishaps=tuple(random_mishap(pick, calm) for _ in range(mishaps)),
        gap_ms=pick.choice((100, 1000, 1000)),
        reads=pick.choice((1, 1, 1, 2)),
        rows=pick.choice((0, 5, 20, 20)),
    )


def random_options(pick: random.Random) -> dict[str, Any]:
    """Random options of a cluster."""
    return {
        "hosts": pick.randint(1, 3),
        "settings": pick.choice((SETTINGS, OFTEN, TIGHT)),
        "migration": pick.choice(MIGRATIONS),
        "memory_limit": pick.choice(MEMORY),
    }


def many_faults(
    least: int,
    tell: Callable[[int, random.Random], Counter[str]],
    capsys: pytest.CaptureFixture[str],
) -> Counter[str]:
    """Run stories until a number of faults have happened; print and return the number at each point.

    `tell` gets the number of a story, and returns the number of faults at each point in it.
    """
    fired: Counter[str] = Counter()
    story = 0
    while fired.total() < least:
        story += 1
        fired += tell(story, random.Random(story))
    with capsys.disabled():
        print(f"\n{fired.total()} faults in {story} stories")
        for point, times in sorted(fired.items()):
            print(f"  {point:<18}{times:>5}")
    return fired
