"""The accuracy of two latency projections: StreamSwitch's M/M/1, and that of back-to-back epochs.

Loads are steady, from nearly idle to nearly full hosts, in both engines of the simulator; `switch.live`
adds loads on Spark. Projections are made without a safety margin, which would make them too high on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.control.diagnose.project import Epochs, Mm1
from penstock.control.treat.decision import Bounds
from penstock.model import SLA
from penstock.sim.plane import Engine, Plane
from penstock.sim.run import simulate
from penstock.sim.shapes import Steady
from penstock.sim.skews import Uniform
from penstock.sim.workload import shaped

UTILISATIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ENGINES: tuple[Engine, ...] = ("continuous", "epochs")
_HOSTS, _SLOTS, _SERVICE_RATE, _EPOCH_COST_MS = 4, 16, 1_000.0, 250.0
_DELTA_MS = {"continuous": 1.0, "epochs": 50.0}
"""Time slot of each engine, in milliseconds. Without epochs, latency is only a few milliseconds."""
_WARM_S = 10.0

_BOUNDS = Bounds(SLA(1000, 1000), margin=0.0)


@dataclass(frozen=True)
class Projected:
    """A steady load: the latency that each projection predicts, and the measured one."""

    engine: str
    utilisation: float
    mm1_ms: float
    epochs_ms: float
    measured_ms: float


def projected(
    engine: str,
    rate: float,
    service_rate: float,
    epoch_cost_ms: float,
    measured_ms: float,
) -> Projected:
    """Projections for a host that gets `rate` records per second, with its measured latency.

    >>> projected("epochs", 500.0, 1000.0, 250.0, measured_ms=700.0)
    Projected(engine='epochs', utilisation=0.5, mm1_ms=2.0, epochs_ms=750.0, measured_ms=700.0)
    """
    of = ([rate], [service_rate], _BOUNDS, epoch_cost_ms)
    mm1, epochs = (float(form.latency_ms(*of)[0]) for form in (Mm1(), Epochs()))
    return Projected(engine, rate / service_rate, mm1, epochs, measured_ms)


def simulated(seconds: float, utilisations: Sequence[float] = UTILISATIONS) -> list[Projected]:
    """Steady Poisson loads in both engines."""
    return [
        _simulated(engine, utilisation, seconds)
        for engine in ENGINES
        for utilisation in utilisations
    ]


def _simulated(engine: Engine, utilisation: float, seconds: float) -> Projected:
    each = utilisation * _SERVICE_RATE
    cost_ms = _EPOCH_COST_MS if engine == "epochs" else 0.0
    plane = Plane(_SERVICE_RATE, engine=engine, epoch_cost_ms=_EPOCH_COST_MS)
    load = Steady(each * _HOSTS)
    trace = shaped(load, Uniform(), _SLOTS, _DELTA_MS[engine], _WARM_S + seconds, seed=1)
    series = simulate(trace, f"static({_HOSTS})", _BOUNDS, plane).series
    counted = slice(int(_WARM_S), None)
    mean_ms = series.mean_ms[counted]
    known = ~np.isnan(mean_ms)
    measured = float(np.average(mean_ms[known], weights=series.rate[counted][known]))
    return projected(engine, each, _SERVICE_RATE, cost_ms, measured)


def errors(loads: Iterable[Projected]) -> dict[str, dict[str, float]]:
    """The mean absolute relative error of each projection, by engine.

    >>> errors([Projected("live", 0.5, 200.0, 110.0, 100.0), Projected("live", 0.8, 50, 80, 100)])
    {'live': {'mm1': 0.75, 'epochs': 0.15}}
    """
    by_engine: dict[str, list[Projected]] = {}
    for load in loads:
        by_engine.setdefault(load.engine, []).append(load)
    return {
        engine: {
            "mm1": round(_error([load.mm1_ms for load in some], some), 4),
            "epochs": round(_error([load.epochs_ms for load in some], some), 4),
        }
        for engine, some in by_engine.items()
    }


def _error(projected_ms: list[float], loads: list[Projected]) -> float:
    measured = np.array([load.measured_ms for load in loads])
    return float(np.mean(np.abs(np.array(projected_ms) - measured) / measured))


def summary(loads: Sequence[Projected]) -> dict[str, Any]:
    """The projections and their errors, for the report."""
    return {"loads": [asdict(load) for load in loads], "errors": errors(loads)}
