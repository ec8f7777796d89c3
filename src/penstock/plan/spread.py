"""Distribution of slots over hosts: how many each should have, and which slots move.

Hosts are numbers here. All functions are deterministic.
"""

from __future__ import annotations

import numpy as np

from penstock.state.arrays import Array


def balanced(place: Array, hosts: Array) -> Array:
    """Slot -> host, with equal counts as far as possible and the fewest moves from `place`.

    A slot whose place is not one of `hosts` (-1: nowhere) has to move anyway.

    >>> balanced(np.array([0, 0, 0, 0, 1, 1]), np.array([0, 1, 2])).tolist()
    [0, 0, 2, 2, 1, 1]
    """
    counts = _counts(place, hosts)
    share, more = divmod(len(place), len(hosts))
    # The hosts that have most get one more, since slots that they keep need not move.
    quota = np.full(len(hosts), share)
    quota[np.argsort(-counts, kind="stable")[:more]] += 1
    moving = ~np.isin(place, hosts)
    for host, surplus in zip(hosts, counts - quota, strict=True):
        if surplus > 0:
            moving[np.flatnonzero(place == host)[-surplus:]] = True
    result = place.copy()
    result[moving] = np.repeat(hosts, np.maximum(quota - counts, 0))
    return result


def adopted(place: Array, hosts: Array) -> Array:
    """Slot -> host, where only slots without a place (-1) move, each to the host with the fewest slots.

    >>> adopted(np.array([0, 0, 0, -1, -1, 1]), np.array([0, 1])).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    homeless = np.flatnonzero(place < 0)
    counts = _counts(place, hosts)
    added = np.zeros(len(hosts), dtype=np.int64)
    for _ in range(len(homeless)):
        added[np.argmin(counts + added)] += 1
    result = place.copy()
    result[homeless] = np.repeat(hosts, added)
    return result


def _counts(place: Array, hosts: Array) -> Array:
    return np.array([np.count_nonzero(place == host) for host in hosts], dtype=np.int64)
