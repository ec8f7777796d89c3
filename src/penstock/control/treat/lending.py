"""Which hosts help others in the middle of an epoch. Pure.

Slots are spread by the rates of the past. A backlog that arrives at once can be spread otherwise, and the
epoch then takes as long as its busiest host. So hosts with less work help those with more, once they have
done their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.model import HostId

_WORTH_MS = 500.0
"""Work above the mean, in milliseconds, from which on a host is helped."""
_AT_MOST = 3
"""Number of hosts up to which a newcomer is given more of them: it has pieces of each at a time, and the last
ones of a host wait behind those of the others."""


def lent(hosts: Sequence[HostId], work_ms: npt.ArrayLike) -> dict[HostId, tuple[HostId, ...]]:
    """Host with more work than the mean -> the hosts that should help it.

    Nobody both helps and is helped. Each helper helps one host: the one with most work left above the mean.

    >>> lent([HostId("a"), HostId("b"), HostId("c"), HostId("d")], [9_000, 4_000, 3_900, 3_100])
    {'a': ('d', 'c', 'b')}
    >>> lent([HostId("a"), HostId("b")], [900, 100])
    {}
    """
    left = np.array(work_ms, dtype=np.float64)
    left -= left.mean()
    # A helper fetches state and sends it back: small differences are not worth that.
    helpers = [n for n in np.argsort(left) if left[n] < 0]
    found: dict[HostId, tuple[HostId, ...]] = {}
    for helper in helpers:
        busiest = int(np.argmax(left))
        if left[busiest] < _WORTH_MS:
            break
        found[hosts[busiest]] = (*found.get(hosts[busiest], ()), hosts[helper])
        left[busiest] += left[helper]
    return found


def widened(
    helpers: Mapping[HostId, Collection[HostId]], owners: Sequence[HostId]
) -> dict[HostId, tuple[HostId, ...]]:
    """Host -> the further hosts that should help it: newcomers, which own nothing in this epoch.

    A newcomer helps the owners of the slots that will move to it. They may have done their work long before
    others have, which nobody knew when the epoch was read. Those with the fewest helpers get it first.

    >>> a, b, c, new = map(HostId, ["a", "b", "c", "new"])
    >>> widened({a: (new,), b: (c,)}, [a, b, c])
    {'c': ('new',), 'b': ('new',)}
    >>> widened({b: (c,)}, [a, b, c])
    {}
    """
    found = {owner: set(helpers.get(owner, ())) for owner in owners}
    newcomers = sorted(set().union(*found.values()) - set(owners))
    more: dict[HostId, tuple[HostId, ...]] = {}
    for newcomer in newcomers:
        helped = sum(newcomer in of for of in found.values())
        others = [owner for owner in owners if newcomer not in found[owner]]
        others.sort(key=lambda owner: len(found[owner]))
        for owner in others[: max(0, _AT_MOST - helped)]:
            found[owner].add(newcomer)
            more[owner] = (*more.get(owner, ()), newcomer)
    return more
