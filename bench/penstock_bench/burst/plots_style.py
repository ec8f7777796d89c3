"""What the pictures of `penstock bench burst` have in common: names and colours of sides, cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock_bench.burst.sides import LIVE, TITLES, Side
from penstock_bench.pictures import INK, QUIET
from penstock_bench.switch.drawing import Run, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: dict[Side, str] = {
    "no_scaling": QUIET,
    "new_hosts_30s": "#E69F00",
    "new_hosts": "#F0C75E",
    "hosts_beforehand": "#CC79A7",
    "functions_migrating": "#D55E00",
    "routers": "#CC79A7",
    "routers_transients": "#E69F00",
    "no_warm": "#56B4E9",
    "penstock": "#0072B2",
    "overprovisioned": "#009E73",
}
"""One for each side in all pictures; colour-blind people can tell those of a picture apart."""
COMPARED = LIVE
BREAKDOWN: tuple[Side, ...] = (
    "functions_migrating",
    "routers",
    "routers_transients",
    "no_warm",
    "penstock",
)
QUERIES = ("q1", "q4", "q5", "q6", "q7", "q8")


def case(run: Run) -> str:
    """What arrives in a run.

    >>> case({"shape": "burst", "factor": 5.0, "seconds": 60})
    '5x, 60 s'
    >>> case({"shape": "sine", "factor": 5.0, "seconds": 60})
    'sine'
    """
    if run["shape"] != "burst":
        return str(run["shape"])
    return f"{run['factor']:g}x, {run['seconds']:g} s"


def ordered(names: Iterable[Any], like: Sequence[Any]) -> list[Any]:
    """Those that there are, in a given order.

    >>> ordered({"q7", "q1"}, QUERIES)
    ['q1', 'q7']
    """
    found = set(names)
    return [name for name in like if name in found]


def values(series: Iterable[float | None]) -> Any:
    """For a line, with gaps where nothing is known."""
    return np.array([np.nan if value is None else value for value in series])


def joined(series: Iterable[float | None]) -> tuple[Any, Any]:
    """For a line without gaps: the middles of the seconds in which there is something, and that."""
    known = values(series)
    seconds = np.flatnonzero(~np.isnan(known))
    return seconds + 0.5, known[seconds]


def line_of(side: Side) -> dict[str, Any]:
    """How a side's line is drawn; Penstock's is the one to look at."""
    return {"color": COLOURS[side], "lw": 2.2 if side == "penstock" else 1.3}


def shade(axes: Axes, run: Run) -> None:
    """The time of the burst."""
    at_s = float(run["at_s"])
    axes.axvspan(at_s, at_s + run["seconds"], color=INK, alpha=0.06, lw=0)


def side_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """By side: in the same order below all pictures."""
    legend(figure, {TITLES[side]: handles[side] for side in ordered(handles, tuple(COLOURS))})
