"""Figures from a run's journal and series: switching times, timelines and loads of hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.control.examine.vitals import Floats
from penstock.control.journal.entry import Entry
from penstock.plan.slots import slots_from_text
from penstock.sim.ledger import Series
from penstock.sim.trace import Trace

Journal = Sequence[Entry]


def switching_s(journal: Journal, from_s: float = 0.0) -> float:
    """Total seconds of the treatments that began at `from_s` or later.

    >>> began = Entry(2_000.0, None, "sum", "began", "", {"treatments": []})
    >>> done = Entry(3_300.0, None, "sum", "done", "", {"took_ms": 1_300.0})
    >>> switching_s([began, done]), switching_s([began, done], from_s=3.0)
    (1.3, 0.0)
    """
    ended = [(e.time_ms, e.facts["took_ms"]) for e in journal if e.event == "done"]
    return float(sum(took for end, took in ended if end - took >= from_s * 1000)) / 1000


def timeline(series: Series, journal: Journal, every_s: int) -> dict[str, Any]:
    """A run over time, with a value for every `every_s` seconds; None where nothing completed.

    Rates and hosts are averages. Latencies are the mean and the 99th percentile of the worst second.
    """
    balanced = [
        round(entry.time_ms / 1000, 1)
        for entry in journal
        if entry.event == "began"
        and any(treatment["kind"] == "balance" for treatment in entry.facts["treatments"])
    ]
    return {
        "every_s": every_s,
        "rate": _reduced(series.rate, every_s, np.nanmean),
        "hosts": _reduced(series.hosts, every_s, np.nanmean),
        "mean_ms": _reduced(series.mean_ms, every_s, np.nanmax),
        "p99_ms": _reduced(series.p99_ms, every_s, np.nanmax),
        "balanced_s": balanced,
    }


def _reduced(values: Floats, every: int, how: Any) -> list[float | None]:
    """Reduce each run of `every` values to one with `how`.

    >>> _reduced(np.array([1.0, 3.0, np.nan, np.nan, 5.0]), 2, np.nanmax)
    [3.0, None, 5.0]
    """
    parts = (values[start : start + every] for start in range(0, len(values), every))
    return [None if np.isnan(part).all() else round(float(how(part)), 2) for part in parts]


def host_loads(trace: Trace, hosts: int, journal: Journal) -> Floats:
    """Records that arrived for each host, by time slot; for steps that never scale.

    A balance changes owners as soon as it begins, since no host has to start.

    >>> trace = Trace.of_rates(np.full((4, 4), 10.0), delta_ms=1000.0)
    >>> move = {"kind": "balance", "slots": "1", "source": "sum/0", "target": "sum/1", "reason": ""}
    >>> began = Entry(2_000.0, None, "sum", "began", "", {"treatments": [move]})
    >>> host_loads(trace, 2, [began]).tolist()
    [[20.0, 20.0], [20.0, 20.0], [10.0, 30.0], [10.0, 30.0]]
    """
    owner = np.arange(trace.slots) * hosts // trace.slots
    loads = np.empty((len(trace.counts), hosts))
    changes = [e for e in journal if e.event == "began"]
    ends = [*(int(e.time_ms / trace.delta_ms) for e in changes), len(trace.counts)]
    first = 0
    for number, end in enumerate(ends):
        for host in range(hosts):
            loads[first:end, host] = trace.counts[first:end, owner == host].sum(axis=1)
        if number < len(changes):
            for move in changes[number].facts["treatments"]:
                slots = slots_from_text(move["slots"], trace.slots)
                owner[list(slots)] = int(move["target"].rsplit("/", 1)[1])
        first = end
    return loads


def by_seconds(loads: Floats, per_second: int = 10) -> list[list[float]]:
    """Loads by time slot as records per second: a list for each host.

    >>> by_seconds(np.array([[1.0, 2.0], [3.0, 4.0]]), per_second=2)
    [[4.0], [6.0]]
    """
    starts = np.arange(0, len(loads), per_second)
    return [column.tolist() for column in np.add.reduceat(loads, starts, axis=0).T]


def other_share(
    journal: Journal, other_rate: float, ordinary_rate: float, from_s: float, to_s: float
) -> float | None:
    """Share of hosts over time that are as fast as those of the other kind.

    A host's measured service rate, from the journal's decisions, shows its kind. None if there were no
    treatments: the journal then does not say which hosts there are.
    """
    boundary = (other_rate + ordinary_rate) / 2
    is_other: dict[str, bool] = {}
    for host, rate in _measured(journal):
        is_other[host] = (rate < boundary) == (other_rate < ordinary_rate)
    done = [e for e in journal if e.event == "done"]
    times = np.clip([e.time_ms / 1000 for e in done] + [to_s], from_s, to_s)
    spent = sizes = 0.0
    for entry, passed in zip(done, np.diff(times).tolist(), strict=True):
        known = [is_other[host] for host in entry.facts["hosts_now"] if host in is_other]
        spent += passed * sum(known)
        sizes += passed * len(known)
    return round(spent / sizes, 4) if sizes else None


def _measured(journal: Iterable[Entry]) -> Iterator[tuple[str, float]]:
    """Hosts and their measured service rates, from the journal's decisions."""
    for entry in journal:
        for host in entry.facts.get("hosts", ()) if entry.event == "decided" else ():
            if host["service_rate"] is not None:
                yield host["host"], host["service_rate"]
