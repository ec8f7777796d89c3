"""The pictures of `penstock bench load`: what each rate that was tried came to, for every side.

A full mark is a rate that held, a hollow one a rate that did not. The upright line is the highest that held,
the median of the rounds.
"""

from __future__ import annotations

from penstock_bench.charts import Drawable, Line, Panel, Picture, Pictures
from penstock_bench.load.sides import PENSTOCK
from penstock_bench.report import Result
from penstock_bench.style import BLUE, GREY, PINK, RED

_SIDES = {
    PENSTOCK: ("Penstock", BLUE, "o"),
    "native_rocksdb": ("Spark with RocksDB", RED, "s"),
    "native_hdfs": ("Spark with its default store", PINK, "D"),
}
"""What the report calls a side: its name, colour and marker here."""
_TITLES = {"sum": "keyed sum", "q5": "NEXMark q5"}
_THOUSAND = 1000
_TOP = 3.0
"""Latencies above so many times the bound are drawn there: such a trial was ended early."""


def pictures(report: Result) -> Pictures:
    """One picture: above, the success of each rate, below its latency; a column for each query."""
    return {"load": lambda: _picture(report)} if report["results"] else {}


def _picture(report: Result) -> Picture:
    results, settings = report["results"], report["settings"]
    bound_ms = settings["sla"]["latency_ms"]
    success = [
        Panel(
            _marks(told, "success", 1.0, settings["success"]),
            y="windows that kept the SLA",
            title=_TITLES[query],
            log="x",
            percent=True,
            y_from=-0.05,
            y_to=1.05,
        )
        for query, told in results.items()
    ]
    latency = [
        Panel(
            _marks(told, "mean_ms", _TOP * bound_ms, bound_ms),
            x="thousand rows a second",
            y="mean latency, ms",
            log="x",
            y_from=0.0,
            y_to=1.05 * _TOP * bound_ms,
        )
        for told in results.values()
    ]
    title = "Which steady rates keep the SLA: full marks did, lines are the highest"
    return Picture(title, [*success, *latency], columns=len(results), share_x="col", share_y="row")


def _marks(told: Result, what: str, top: float, bound: float) -> list[Drawable]:
    """What the trials of all sides came to, the highest rates, and the bound."""
    marks: list[Drawable] = []
    rates = [trial["rate"] / _THOUSAND for side in _SIDES for trial in told[side]["trials"]]
    if rates:
        ends = [min(rates) * 0.9, max(rates) * 1.1]
        marks.append(Line(ends, [bound, bound], "bound", GREY, how={"ls": ":", "lw": 1.2}))
    for side, (name, colour, marker) in _SIDES.items():
        for holds in (False, True):
            trials = [one for one in told[side]["trials"] if one["holds"] == holds]
            heights = [top if one[what] is None else min(one[what], top) for one in trials]
            face = {"mfc": colour if holds else "none", "mec": colour}
            how = {"marker": marker, "ls": "", "ms": 6, **face}
            places = [one["rate"] / _THOUSAND for one in trials]
            marks.append(Line(places, heights, name if holds else "", colour, how=how))
        most = told[side]["max_rate"]["median"] / _THOUSAND
        if most:
            marks.append(Line([most, most], [0.0, top], colour=colour, how={"lw": 1.0}))
    return marks
