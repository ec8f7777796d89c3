"""Unit strategies: the best slots to move, and between which hosts, for each kind of treatment.

The best strategy minimises the greatest projected latency (StreamSwitch). The search uses slack, the inverse
of latency (see `penstock.control.diagnose.project`), so that it works even if no host can keep up.

    balance     from a source to the host that gives the best result for both
    scale out   from a source to a new host, which is assumed to be as fast as the source
    scale in    all slots of one host to one other, with the best result for the remaining hosts
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.control.diagnose import strategy_kernels as kernels
from penstock.control.diagnose.load import Load
from penstock.control.diagnose.outlook import milliseconds_text
from penstock.control.diagnose.project import Projection
from penstock.control.examine.vitals import Ints, Vitals
from penstock.control.treat.decision import Bounds, Kind, Treatment, new_host


class Move(NamedTuple):
    """Slots that should go from one host to another. Hosts are indices."""

    slots: Ints
    source: int
    target: int
    slack: float
    """The lesser slack of the two hosts after the move, or the target's if the source has no slots left."""


def best_balance(load: Load, source: int) -> Move | None:
    """The best move from the source to another host; None if no slot can move."""
    slots, most = load.movable(source)
    if most < 1 or load.hosts < 2:
        return None
    moved = np.concatenate(([0.0], np.cumsum(load.slot_rate[slots[:most]])))
    spare = load.capacity - load.rate
    target = int(kernels.best_target(moved, source, spare, load.gain))
    return None if target < 0 else _cut(load, slots, most, source, target)


def best_scale_out(load: Load, source: int) -> tuple[Load, Move] | None:
    """The load with a new host, which is its last one, and the best move to it; None if no slot can move.

    A source without arrivals gives away half of its slots.
    """
    grown = load.with_host(source)
    if load.rate[source] > 0:
        slots, most = load.movable(source)
        move = _cut(grown, slots, most, source, load.hosts)
    else:
        owned = np.flatnonzero(load.owner == source)
        half = owned[: len(owned) // 2]
        move = Move(half, source, load.hosts, grown.slack[source]) if len(half) else None
    return None if move is None else (grown, move)


def best_scale_in(load: Load, floor: float = -np.inf) -> Move | None:
    """The best move of all slots of one host to another; None if there is none.

    The best move leaves the greatest slacks at the remaining hosts, compared from the least one on. The
    target's slack must not fall below `floor`.
    """
    if load.hosts < 2:
        return None
    spare = load.capacity - load.rate
    source, target = kernels.best_pair(spare, load.gain, load.rate, floor)
    if source < 0:
        return None
    slack = (spare[target] - load.rate[source]) / load.gain[target]
    return Move(np.flatnonzero(load.owner == source), int(source), int(target), float(slack))


def best_spread(load: Load, floor: float, targets: int = 4) -> list[Move]:
    """Moves of all slots of one host to several others that keep a slack of `floor`; empty if none fit.

    Where no single host has room for all slots of another, several together may. The host with the fewest
    arrivals leaves. Its slots go to the hosts with the most slack, the largest slots first.
    """
    if load.hosts < 3:
        return []
    source = int(load.rate.argmin())
    slots = np.flatnonzero(load.owner == source)
    rates = load.slot_rate[slots]
    total = rates.sum()
    # The host's rate may include a reserve. Then its slots get the same reserve in proportion.
    rates = rates * (load.rate[source] / total) if total > 0 else rates
    order = np.argsort(-rates, kind="stable")
    chosen = np.argsort(-load.slack, kind="stable")
    chosen = chosen[chosen != source][:targets]
    spare = (load.capacity - load.rate)[chosen]
    places = kernels.spread(rates[order], spare, load.gain[chosen], floor)
    return [
        Move(slots[order[places == place]], source, int(chosen[place]), spare[place] / gain)
        for place, gain in enumerate(load.gain[chosen].tolist())
        if np.any(places == place)
    ]


def _cut(load: Load, slots: Ints, most: int, source: int, target: int) -> Move | None:
    """The move from source to target with the best choice of these slots, which are in order."""
    spare, gain = load.capacity - load.rate, load.gain
    chosen, slack = kernels.choose(
        load.slot_rate[slots], most, spare[source], gain[source], spare[target], gain[target]
    )
    return Move(slots[chosen], source, target, float(slack)) if chosen.any() else None


def balance(vitals: Vitals, bounds: Bounds, projection: Projection) -> Treatment | None:
    """The best balance for the host with the greatest projected latency; None if there is none.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [5.0, 4.0, 1.0, 1.0], hosts=2, service_rate=10.0)
    >>> print(balance(vitals, Bounds(SLA(1000, 1000)), Mm1()))
    balance: slots 1 from sum/0 to sum/1
    """
    load = Load.of(vitals, bounds, projection)
    move = None if load is None else best_balance(load, int(load.slack.argmin()))
    return None if load is None or move is None else treatment(vitals, load, move)


def scale_out(
    vitals: Vitals, bounds: Bounds, projection: Projection, source: int | None = None
) -> Treatment | None:
    """The best scale-out from a host to a new one; None if there is none.

    The source is the host with the greatest projected latency unless `source` is set.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [5.0, 4.0, 1.0, 1.0], hosts=2, service_rate=10.0)
    >>> print(scale_out(vitals, Bounds(SLA(1000, 1000)), Mm1()))
    scale out: slots 0 from sum/0 to new/1
    """
    load = Load.of(vitals, bounds, projection)
    if load is None:
        return None
    best = best_scale_out(load, int(load.slack.argmin()) if source is None else source)
    return None if best is None else treatment(vitals, load, best[1])


def scale_in(vitals: Vitals, bounds: Bounds, projection: Projection) -> Treatment | None:
    """The best scale-in; None if there is none.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [5.0, 1.0, 2.0], hosts=3, service_rate=10.0)
    >>> print(scale_in(vitals, Bounds(SLA(1000, 1000)), Mm1()))
    scale in: slots 1 from sum/1 to sum/2
    """
    load = Load.of(vitals, bounds, projection)
    move = None if load is None else best_scale_in(load)
    return None if load is None or move is None else treatment(vitals, load, move)


def treatment(vitals: Vitals, load: Load, move: Move) -> Treatment:
    """The treatment for a move, with the expected effect as its reason."""
    source, hosts = vitals.hosts[move.source], len(vitals.hosts)
    gives_all = len(move.slots) == np.count_nonzero(load.owner == move.source)
    target = vitals.hosts[move.target] if move.target < hosts else new_host(1)
    would = milliseconds_text(float(load.latency_ms[move.source]))
    after = milliseconds_text(1.0 / move.slack if move.slack > 0 else np.inf)
    kind: Kind = "scale_in" if gives_all else "balance" if move.target < hosts else "scale_out"
    who = f"{target} would settle" if gives_all else f"{source} and {target} would settle"
    return Treatment(
        kind,
        tuple(sorted(move.slots.tolist())),
        source,
        target,
        f"{source} would settle at {would} without it; with it {who} at {after} at most",
    )
