"""The M/M/k queue: one queue, k equal hosts. What DRS goes by.

Erlang's formulas are computed by their recursions, which neither overflow nor cancel out, for any
number of hosts.
"""

from __future__ import annotations

import math


def blocking(hosts: int, load: float) -> float:
    """Erlang B: how likely all hosts are busy if nobody waits; `load` is rate / service rate.

    >>> round(blocking(2, 1.0), 6)
    0.2
    """
    busy = 1.0
    for number in range(1, hosts + 1):
        busy = _one_more(busy, number, load)
    return busy


def waiting(hosts: int, load: float) -> float:
    """Erlang C: how likely a record has to wait; 1 where the hosts cannot keep up.

    >>> round(waiting(2, 1.0), 6), waiting(2, 2.0)
    (0.333333, 1.0)
    """
    return _waiting(blocking(hosts, load), hosts, load) if load < hosts else 1.0


def sojourn_ms(hosts: int, rate: float, service_rate: float) -> float:
    """How long a record is there on average, waiting and being worked on; inf if it never settles.

    >>> round(sojourn_ms(1, 1799.0, 1800.0), 6), sojourn_ms(1, 1800.0, 1800.0)
    (1000.0, inf)
    """
    return _sojourn_ms(blocking(hosts, rate / service_rate), hosts, rate, service_rate)


def hosts_needed(rate: float, service_rate: float, latency_ms: float, most: int) -> int | None:
    """The smallest number of hosts with a sojourn of at most `latency_ms`; None if above `most`.

    >>> hosts_needed(5_000.0, 1_000.0, 1_000.0, most=32), hosts_needed(5_000.0, 1_000.0, 1.1, most=32)
    (6, 8)
    >>> hosts_needed(5_000.0, 1_000.0, 0.5, most=10_000) is None
    True
    """
    if rate >= most * service_rate or 1000.0 / service_rate > latency_ms:
        return None
    busy, load = 1.0, rate / service_rate
    for hosts in range(1, most + 1):
        busy = _one_more(busy, hosts, load)
        if _sojourn_ms(busy, hosts, rate, service_rate) <= latency_ms:
            return hosts
    return None


def _one_more(busy: float, hosts: int, load: float) -> float:
    """Erlang B for so many hosts, from that for one host less."""
    return load * busy / (hosts + load * busy)


def _waiting(busy: float, hosts: int, load: float) -> float:
    return hosts * busy / (hosts - load * (1.0 - busy))


def _sojourn_ms(busy: float, hosts: int, rate: float, service_rate: float) -> float:
    spare = hosts * service_rate - rate
    if spare <= 0:
        return math.inf
    return 1000.0 * (_waiting(busy, hosts, rate / service_rate) / spare + 1.0 / service_rate)
