"""Distribution of slots: equal counts, with the fewest moves."""

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
    slots = Counter(place.tolist())
    assert set(slots) <= set(hosts.tolist()), "a slot is on none of the hosts"
    return [slots[host] for host in hosts.tolist()]


@given(PLACES, HOSTS)
def test_balanced_is_equal_with_the_fewest_moves(place: Any, hosts: Any) -> None:
    result = balanced(place, hosts)
    assert max(counts(result, hosts)) - min(counts(result, hosts)) <= 1

    # No equal distribution keeps more slots in place: the hosts with most slots keep the larger shares.
    before = sorted((int(np.sum(place == host)) for host in hosts), reverse=True)
    share, more = divmod(len(place), len(hosts))
    kept = sum(min(n, share + (rank < more)) for rank, n in enumerate(before))
    assert np.sum(result == place) == kept


@given(PLACES, HOSTS)
def test_balanced_moves_only_from_full_hosts_to_others(place: Any, hosts: Any) -> None:
    result = balanced(place, hosts)
    moved = result != place
    assert not set(place[moved].tolist()) & set(result[moved].tolist())
    assert np.array_equal(balanced(result, hosts), result), "an equal distribution stays"


@given(PLACES, HOSTS)
def test_adopted_moves_only_orphans_to_the_hosts_with_the_fewest_slots(
    place: Any, hosts: Any
) -> None:
    result = adopted(place, hosts)
    assert np.array_equal(result[place >= 0], place[place >= 0])
    assert not np.any(result < 0)
    takers = set(result[place < 0].tolist())
    least = min(int(np.sum(result == host)) for host in hosts)
    assert all(np.sum(result == taker) <= least + 1 for taker in takers)
