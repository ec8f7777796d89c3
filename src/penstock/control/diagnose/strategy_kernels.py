"""Compiled searches of the strategies. Hosts are given by spare rate (capacity - rate) and gain.

Slack is spare / gain, the inverse of the projected latency: the larger, the better.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_SAME = 1e-12
"""Slacks that differ by less are the same, but for the rounding."""


@njit(cache=True, nogil=True)
def best_pair(spare, gain, rate, floor):  # type: ignore[no-untyped-def]
    """The source and target whose merging leaves the best slacks; (-1, -1) if none is allowed.

    Best: the slacks of the remaining hosts, in ascending order, are lexicographically greatest.
    Only pairs whose target keeps a slack of `floor` are allowed.

    No vector is built. Which of two multisets of one size comes first in that order depends only
    on the smallest value that they do not hold equally often. So what both hold may be left out:
    instead of "all hosts less source and target, plus the merged one" for each of two pairs, compare
    {merged 1, source 2, target 2} with {merged 2, source 1, target 1}. It follows that for a given
    source the best target is the one with the greatest merged slack (the lesser own slack in a tie),
    since no merged slack is above the target's own.
    """
    hosts = len(spare)
    inverse = 1.0 / gain
    slack = spare * inverse
    best_source, best_target, best_merged = -1, -1, 0.0
    mine, other = np.empty(3), np.empty(3)
    for source in range(hosts):
        target, merged = -1, floor
        for host in range(hosts):
            value = (spare[host] - rate[source]) * inverse[host]
            if value < merged - _SAME or host == source:
                continue
            if target < 0 or value > merged + _SAME or slack[host] < slack[target]:
                target, merged = host, value
        if target < 0:
            continue
        if best_source >= 0:
            mine[:] = (merged, slack[best_source], slack[best_target])
            other[:] = (best_merged, slack[source], slack[target])
            mine.sort()
            other.sort()
            better = False
            for i in range(3):
                if abs(mine[i] - other[i]) > _SAME:
                    better = mine[i] > other[i]
                    break
            if not better:
                continue
        best_source, best_target, best_merged = source, target, merged
    return best_source, best_target


@njit(cache=True, nogil=True)
def _cut(moved, spare_s, gain_s, spare_t, gain_t):  # type: ignore[no-untyped-def]
    """How many of the first slots should go, and the lesser slack of source and target then.

    `moved[j]` is the rate of the first j slots. The source's slack rises with it and the target's
    falls: the best cut is next to where they meet.
    """
    level = (spare_t * gain_s - spare_s * gain_t) / (gain_s + gain_t)
    below = max(np.searchsorted(moved, level, side="right") - 1, 0)
    count, slack = 0, -np.inf
    for j in range(below, min(below + 2, len(moved))):
        found = min((spare_s + moved[j]) / gain_s, (spare_t - moved[j]) / gain_t)
        if found > slack:
            count, slack = j, found
    return count, slack, level


@njit(cache=True, nogil=True)
def best_target(moved, source, spare, gain):  # type: ignore[no-untyped-def]
    """The host for which the lesser slack of it and the source becomes greatest, or -1.

    If slots could be cut at will, both would end up with `even`. Less is all that can be had, so the
    most promising host comes first, and then only those that could still be better.
    """
    even = (spare + spare[source]) / (gain + gain[source])
    even[source] = -np.inf
    first = even.argmax()
    best, best_slack = -1, -np.inf
    for turn in range(-1, len(spare)):
        host = first if turn < 0 else turn
        if even[host] > best_slack and host != source:
            count, slack, _ = _cut(moved, spare[source], gain[source], spare[host], gain[host])
            if count > 0 and slack > best_slack:
                best, best_slack = host, slack
    return best


@njit(cache=True, nogil=True)
def choose(rates, most, spare_s, gain_s, spare_t, gain_t):  # type: ignore[no-untyped-def]
    """Which slots go, at most so many, given their rates in the order in which they should.

    The best number of first slots; or, where this leaves less slack than can be had, all that fit
    below the level at which source and target would be even, taken in the same order, perhaps with
    the smallest one that does not.
    """
    moved = np.zeros(len(rates) + 1)
    for j in range(len(rates)):
        moved[j + 1] = moved[j] + rates[j]
    count, slack, level = _cut(moved[: most + 1], spare_s, gain_s, spare_t, gain_t)
    fitting = np.zeros(len(rates), np.bool_)
    total, held, least = 0.0, 0, -1
    for j in range(len(rates)):
        if held < most and total + rates[j] <= level:
            fitting[j] = True
            total += rates[j]
            held += 1
        elif least < 0 or rates[j] < rates[least]:
            least = j
    fitted = min((spare_s + total) / gain_s, (spare_t - total) / gain_t)
    if held < most and least >= 0:
        total += rates[least]
        filled = min((spare_s + total) / gain_s, (spare_t - total) / gain_t)
        if filled > fitted:
            fitting[least] = True
            fitted = filled
    if fitted > slack:
        return fitting, fitted
    fitting[:] = False
    fitting[:count] = True
    return fitting, slack


@njit(cache=True, nogil=True)
def spread(rates, spare, gain, floor):  # type: ignore[no-untyped-def]
    """Per slot: the target where it leaves the most slack; all -1 if there is no room for all.

    `spare` becomes what is left to each target.
    """
    places = np.full(len(rates), -1, np.int64)
    for slot in range(len(rates)):
        best, best_slack = -1, floor
        for target in range(len(spare)):
            slack = (spare[target] - rates[slot]) / gain[target]
            if slack >= best_slack:
                best, best_slack = target, slack
        if best < 0:
            places[:] = -1
            break
        places[slot] = best
        spare[best] -= rates[slot]
    return places
