"""Sharing slots out: equal, and with the fewest moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.spread import adopted, balanced

PLACES = st.lists(st.integers(-1, 6), min_size=1, max_size=40).map(np.array)
HOSTS = st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True).map(np.array)


def counts(place: Any, hosts: Any) -> list[int]:
    found = Counter(place.tolist())
    assert set(found) <= set(hosts.tolist()), "every slot is on one of the hosts"
    return [found[host] for host in hosts.tolist()]


@given(PLACES, HOSTS)
def test_balanced_is_equal_with_the_fewest_moves(place: Any, hosts: Any) -> None:
    result = balanced(place, hosts)
    assert max(counts(result, hosts)) - min(counts(result, hosts)) <= 1

    # No equal sharing keeps more slots where they are: the hosts with most keep the larger shares.
    before = sorted((int(np.sum(place == host)) for host in hosts), reverse=True)
    share, more = divmod(len(place), len(hosts))
    kept = sum(min(n, share + (rank < more)) for rank, n in enumerate(before))
    assert np.sum(result == place) == kept


@given(PLACES, HOSTS)
def test_balanced_moves_from_the_surplus_to_the_lack_only(place: Any, hosts: Any) -> None:
    result = balanced(place, hosts)
    moved = result != place
    assert not set(place[moved].tolist()) & set(result[moved].tolist())
    assert np.array_equal(balanced(result, hosts), result), "what is equal stays"


@given(PLACES, HOSTS)
def test_adopted_moves_orphans_only_to_who_has_least(place: Any, hosts: Any) -> None:
    result = adopted(place, hosts)
    assert np.array_equal(result[place >= 0], place[place >= 0])
    assert not np.any(result < 0)
    takers = set(result[place < 0].tolist())
    least = min(int(np.sum(result == host)) for host in hosts)
    assert all(np.sum(result == taker) <= least + 1 for taker in takers)
