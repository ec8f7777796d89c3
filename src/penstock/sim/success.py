"""The success rate: the share of windows in which a slot kept the SLA. For simulated and real runs.

A window is kept if the mean latency of the records completed in it is within the bound. A window without
completed records is kept unless a record of the slot has been waiting for longer than the bound at its end.
Windows end at every time slot, or every few. The first windows are shorter, because they begin with the
first time slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.control.examine.vitals import Floats
from penstock.errors import SettingError
from penstock.model import SLA

Array = npt.NDArray[Any]

_HARDLY_ANY = 1e-3
"""Fraction of a record that counts as 0, since fractions add up to whole records only roughly."""


def success_rates(
    arrived: Array,
    completed: Array,
    latency_ms: Array,
    delta_ms: float,
    sla: SLA,
    every: int = 1,
    age_ms: Array | None = None,
) -> Floats:
    """The success rate of each slot. That of the step is their mean.

    The arrays are by time slot and slot: the records that arrived, those that completed, and the sum of the
    latencies of the completed ones. A window ends at each `every`-th time slot. `age_ms` is the age with
    which the records of each time slot arrive, and counts as waiting.

    >>> arrived, completed = np.array([[4], [0], [0]]), np.array([[2], [0], [2]])
    >>> latency_ms = np.array([[100.0], [0.0], [4000.0]])
    >>> success_rates(arrived, completed, latency_ms, 1000.0, SLA(1000, 1000)).tolist()
    [0.3333333333333333]
    """
    window = round(sla.window_ms / delta_ms)
    if window < 1 or every < 1:
        raise SettingError(
            f"the window is {sla.window_ms} ms, every {every} time slots of {delta_ms:g} ms",
            hint="use a window of one time slot or more, and 1 or more for every",
        )
    if not arrived.shape == completed.shape == latency_ms.shape:
        raise SettingError(
            f"the arrays have the shapes {arrived.shape}, {completed.shape} and {latency_ms.shape}",
            hint="use one value for each time slot and slot in all of them",
        )
    ages = np.zeros(len(arrived)) if age_ms is None else age_ms
    kept = _kept(
        arrived, completed, latency_ms, ages, float(delta_ms), float(sla.latency_ms), window, every
    )
    rates: Floats = kept / max(1, len(arrived) // every)
    return rates


@njit(cache=True, nogil=True)
def _kept(  # type: ignore[no-untyped-def]
    arrived, completed, latency_ms, ages, delta_ms, bound_ms, window, every
):
    """Number of windows that each slot kept.

    Time slots are divided into blocks as long as a window, so that every window is the end of one block and
    the beginning of the next. Nothing is ever subtracted from a sum, so rounding errors do not add up.
    """
    length, slots = arrived.shape
    kept = np.zeros(slots, np.int64)
    head, left = np.full(slots, -1), np.zeros(slots)
    # Sums over the previous block, from each of its time slots to its end.
    ends_count, ends_ms = np.zeros((window + 1, slots)), np.zeros((window + 1, slots))
    for start in range(0, length, window):
        count, sum_ms = np.zeros(slots), np.zeros(slots)
        stop = min(start + window, length)
        for m in range(start, stop):
            ending = (m + 1) % every == 0
            for slot in range(slots):
                count[slot] += completed[m, slot]
                sum_ms[slot] += latency_ms[m, slot]
                _complete(arrived, completed[m, slot], head, left, slot, m)
                if not ending:
                    continue
                in_window = count[slot] + ends_count[m - start + 1, slot]
                if in_window > _HARDLY_ANY:
                    total_ms = sum_ms[slot] + ends_ms[m - start + 1, slot]
                    kept[slot] += total_ms <= bound_ms * in_window
                elif left[slot] > _HARDLY_ANY:
                    # Records arrive in the middle of their time slot on average.
                    waited_ms = (m - head[slot] + 0.5) * delta_ms + ages[head[slot]]
                    kept[slot] += waited_ms <= bound_ms
                else:
                    kept[slot] += 1
        for m in range(stop - 1, start - 1, -1):
            for slot in range(slots):
                ends_count[m - start, slot] = ends_count[m - start + 1, slot] + completed[m, slot]
                ends_ms[m - start, slot] = ends_ms[m - start + 1, slot] + latency_ms[m, slot]
    return kept


@njit(cache=True, nogil=True)
def _complete(arrived, done, head, left, slot, m):  # type: ignore[no-untyped-def]
    """Remove `done` completed records from the oldest ones of the slot, up to time slot m."""
    while True:
        if left[slot] <= _HARDLY_ANY:
            if head[slot] >= m:
                return
            # A rounding error of one time slot carries over to the next.
            head[slot] += 1
            left[slot] += arrived[head[slot], slot]
        elif done > 0.0:
            taken = min(done, left[slot])
            left[slot] -= taken
            done -= taken
        else:
            return
