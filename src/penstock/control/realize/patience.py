"""How long an epoch should wait for hosts that are about to be there."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.realize.course import Treating
from penstock.control.treat.decision import after

_LATE = 3.0
"""Hosts that have taken so many times what they usually do are not waited for any longer."""
_WORTH_MS = 100.0
"""A gain below this is not worth waiting for."""


def patience_ms(
    treating: Treating | None, read_ms: float, now_ms: float, usual_start_ms: float
) -> float:
    """Milliseconds that the next epoch of a step may wait for the hosts of a treatment under way.

    What has arrived since the last epoch read its rows, at `read_ms`, would take the present hosts
    some time, and the hosts of the treatment less. If these are there sooner than that gains, and
    usually they are, waiting is the quicker way; but it is never worth more than the gain.
    """
    if treating is None or not treating.grows or treating.vitals is None:
        return 0.0
    vitals, waiting_s = treating.vitals, (now_ms - read_ms) / 1000.0
    known, then = service_rates(vitals), after(vitals, treating.treatments)
    if known is None:
        return 0.0
    times = []
    for one in (vitals, then):
        served = np.where(one.service_rate > 0, one.service_rate, known.mean())
        times.append(float(np.max(one.host_rate * waiting_s / served)))
    gain_ms = 1000.0 * (times[0] - times[1])
    left_ms = max(0.0, treating.since_ms + usual_start_ms - now_ms)
    if now_ms - treating.since_ms > _LATE * usual_start_ms:
        return 0.0  # nobody knows when they come: each epoch would wait, and be the longer for it
    return gain_ms if gain_ms > _WORTH_MS and left_ms < gain_ms else 0.0
