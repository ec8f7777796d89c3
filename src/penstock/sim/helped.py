"""An epoch of a step in which functions take part of the rows, and hosts merge what they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.control.examine.vitals import Floats
from penstock.plan.epoch import Offload
from penstock.sim.epochs import Effort, Intake, host_records
from penstock.sim.fleet import Fleet
from penstock.sim.functions import Pool


@dataclass(frozen=True, eq=False)
class Planned:
    """What functions get of one epoch."""

    shares: Floats
    """Of the rows of each slot."""
    functions: int

    @staticmethod
    def of(offload: Offload, rows: int) -> Planned | None:
        """As was decided; or more, if couriers find that so many rows are too many. None: nothing.

        All couriers are taken to bring as much as they do as a rule, so that each finds the same.

        >>> from penstock.plan.reflex import Reflex
        >>> reflex = Reflex(900.0, 600.0, 300.0, 0.0, 8)
        >>> offload = Offload(np.array([0.0, 0.5]), 2, 1000, reflex=reflex)
        >>> Planned.of(offload, rows=2400).shares.tolist()
        [0.75, 0.75]
        """
        shares, reflex = offload.shares, offload.reflex
        functions = offload.functions if shares.any() else 0
        share = 0.0 if reflex is None else reflex.share(rows)
        if reflex is not None and share > 0 and (share > shares).any():
            shares = np.maximum(shares, share)
            functions = max(functions, reflex.at_once(round(share * rows)))
        return Planned(shares, functions) if functions and shares.any() else None


def helped(fleet: Fleet, pool: Pool, intake: Intake, planned: Planned, began_ms: float) -> Effort:
    """Share the work of an epoch out between the hosts of a step and functions.

    Both work at the same time; the step is done when the last of them is.
    """
    before, shares = pool.usage.money, planned.shares
    rows = round(float(intake.records.sum(axis=0) @ shares))
    took_ms = pool.work(began_ms, rows, planned.functions)
    partials = pool.plane.partials(rows, planned.functions)
    merge = pool.plane.merge_cost * partials / max(rows, 1)
    records = host_records(fleet, intake, 1.0 - shares * (1.0 - merge))
    hosts = Effort.of_hosts(fleet, records, began_ms)
    return hosts.beside(rows, partials, planned.functions, took_ms, pool.usage.money - before)
