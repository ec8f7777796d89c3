"""Charts of `penstock bench load`: the result of each trial, for every side.

Filled marks are rates that held, hollow marks are rates that did not. The vertical line is the highest rate
that held, as the median of the rounds.
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
"""Side in the report -> its name, colour and marker in the chart."""
_TITLES = {"sum": "keyed sum", "q5": "NEXMark q5"}
_THOUSAND = 1000
_TOP = 3.0
"""Multiple of the bound at which latencies are cut off: such trials were ended early."""


def pictures(report: Result) -> Pictures:
    """One chart with a column per query: the success of each rate above, its latency below."""
    return {"load": lambda: _picture(report)} if report["results"] else {}


def _picture(report: Result) -> Picture:
    results, settings = report["results"], report["settings"]
    bound_ms = settings["sla"]["latency_ms"]
    success = [
        Panel(
            _marks(result, "success", 1.0, settings["success"]),
            y="windows that kept the SLA",
            title=_TITLES[query],
            log="x",
            percent=True,
            y_from=-0.05,
            y_to=1.05,
        )
        for query, result in results.items()
    ]
    latency = [
        Panel(
            _marks(result, "mean_ms", _TOP * bound_ms, bound_ms),
            x="thousand rows/s",
            y="mean latency, ms",
            log="x",
            y_from=0.0,
            y_to=1.05 * _TOP * bound_ms,
        )
        for result in results.values()
    ]
    title = "Steady rates that keep the SLA (filled marks) and the highest of them (lines)"
    return Picture(title, [*success, *latency], columns=len(results), share_x="col", share_y="row")


def _marks(result: Result, metric: str, top: float, bound: float) -> list[Drawable]:
    """Marks for the trials of all sides, the highest rates, and the bound."""
    marks: list[Drawable] = []
    rates = [trial["rate"] / _THOUSAND for side in _SIDES for trial in result[side]["trials"]]
    if rates:
        ends = [min(rates) * 0.9, max(rates) * 1.1]
        marks.append(Line(ends, [bound, bound], "bound", GREY, how={"ls": ":", "lw": 1.2}))
    for side, (name, colour, marker) in _SIDES.items():
        for holds in (False, True):
            trials = [trial for trial in result[side]["trials"] if trial["holds"] == holds]
            heights = [top if t[metric] is None else min(t[metric], top) for t in trials]
            face = {"mfc": colour if holds else "none", "mec": colour}
            how = {"marker": marker, "ls": "", "ms": 6, **face}
            places = [trial["rate"] / _THOUSAND for trial in trials]
            marks.append(Line(places, heights, name if holds else "", colour, how=how))
        most = result[side]["max_rate"]["median"] / _THOUSAND
        if most:
            marks.append(Line([most, most], [0.0, top], colour=colour, how={"lw": 1.0}))
    return marks
