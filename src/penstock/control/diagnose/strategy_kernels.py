"""Compiled searches of the strategies. Arrays over hosts: the spare rate (capacity - rate) and the gain.

Slack is spare / gain, the inverse of the projected latency: the larger, the better.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_SAME = 1e-12
"""Difference below which two slacks are equal except for rounding."""


@njit(cache=True, nogil=True)
def best_pair(spare, gain, rate, floor):  # type: ignore[no-untyped-def]
    """The source and target whose merging leaves the best slacks; (-1, -1) if none is allowed.

    The best slacks are those that, in ascending order, are lexicographically greatest over the remaining
    hosts. Only pairs whose target keeps a slack of `floor` are allowed.

    No sorted vectors are needed. Which of two multisets of the same size comes first depends only on the
    smallest value that they do not contain equally often, so common values cancel out. Instead of comparing
    "all hosts less source and target, plus the merged host" for two pairs, it is enough to compare
    {merged 1, source 2, target 2} with {merged 2, source 1, target 1}. No merged slack is above the
    target's own. So the best target for a source is the one with the greatest merged slack, and in a tie
    the one with the lesser slack of its own.
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
    """The number of first slots to move, the lesser slack of source and target then, and the even level.

    `moved[j]` is the rate of the first j slots. As it rises, the source's slack rises and the target's
    falls. The best cut is next to the level at which they meet.
    """
    level = (spare_t * gain_s - spare_s * gain_t) / (gain_s + gain_t)
    below = max(np.searchsorted(moved, level, side="right") - 1, 0)
    count, slack = 0, -np.inf
    for j in range(below, min(below + 2, len(moved))):
        lesser = min((spare_s + moved[j]) / gain_s, (spare_t - moved[j]) / gain_t)
        if lesser > slack:
            count, slack = j, lesser
    return count, slack, level


@njit(cache=True, nogil=True)
def best_target(moved, source, spare, gain):  # type: ignore[no-untyped-def]
    """The target that makes the lesser slack of source and target greatest; -1 if there is none.

    If slots could be divided freely, both hosts would end up with a slack of `even`. This is an upper
    bound. So the host with the highest bound is tried first, and then only those that could be better.
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
    """Flags of the slots to move, at most `most` of them, and the resulting slack.

    `rates` are the rates of the slots, in the order in which they should move. One candidate is the best
    number of first slots. The other is all slots that fit below the level at which source and target would
    be even, taken in the same order, perhaps with the smallest slot that does not fit. The better one wins.
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
    """For each slot, the target that it leaves with the most slack; all -1 if not all slots fit.

    Reduces `spare` to the spare rate left at each target.
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
