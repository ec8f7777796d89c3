"""Sharing slots out among hosts: how many each should have, and which slots move for it.

Hosts are numbers here: places in arrays. All of it is deterministic.
"""

from __future__ import annotations

import numpy as np

from penstock.state.arrays import Array


def balanced(place: Array, hosts: Array) -> Array:
    """slot -> host with counts as equal as can be, and with the fewest slots away from `place`.

    A slot whose place is not one of `hosts` (or -1: nowhere) has to move anyway.

    >>> balanced(np.array([0, 0, 0, 0, 1, 1]), np.array([0, 1, 2])).tolist()
    [0, 0, 2, 2, 1, 1]
    """
    counts = _counts(place, hosts)
    share, more = divmod(len(place), len(hosts))
    # One more goes to those that have most: what they keep need not move.
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
    """slot -> host where only slots without a place (-1) move, each to who then has least.

    >>> adopted(np.array([0, 0, 0, -1, -1, 1]), np.array([0, 1])).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    homeless = np.flatnonzero(place < 0)
    counts = _counts(place, hosts)
    given = np.zeros(len(hosts), dtype=np.int64)
    for _ in range(len(homeless)):
        given[np.argmin(counts + given)] += 1
    result = place.copy()
    result[homeless] = np.repeat(hosts, given)
    return result


def _counts(place: Array, hosts: Array) -> Array:
    return np.array([np.count_nonzero(place == host) for host in hosts], dtype=np.int64)
