"""Which hosts help others in the middle of an epoch. Pure.

Slots are spread by the rates of the past. A backlog that arrives at once can be spread otherwise, and the
epoch then takes as long as its busiest host. So hosts with less work help those with more, once they have
done their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.model import HostId

_WORTH_MS = 500.0
"""Work above the mean, in milliseconds, from which on a host is helped."""


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
