"""The chart of `penstock bench peers`: the throughput of each task, and the latency at a steady rate."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_bench.charts import Bars, Drawable, Line, Panel, Picture, Pictures
from penstock_bench.peers.engines import ENGINES
from penstock_bench.peers.latency import SIDES
from penstock_bench.report import Result
from penstock_bench.style import BLUE, GREEN, GREY, ORANGE, PINK, RED

_COLOURS = {"penstock": BLUE, "native": RED, "spark": PINK, "flink": ORANGE, "bytewax": GREEN}
_TASKS = {
    "sum": "keyed sum",
    "windowed": "windowed count",
    "python_fn": "function per key, in Python",
}


def pictures(report: Result) -> Pictures:
    """One chart: a panel per measured task, and one for latency."""
    return {"peers": lambda: _picture(report["results"])} if report["results"] else {}


def _picture(results: Mapping[str, Result]) -> Picture:
    panels = [
        _throughput(results[task]["sides"], title)
        for task, title in _TASKS.items()
        if task in results and results[task]["sides"]
    ]
    if "latency" in results and results["latency"]["sides"]:
        panels.append(_latency(results["latency"]["sides"]))
    title = "The same work on the same two cores, with durable state"
    return Picture(title, panels, columns=min(2, len(panels)), share_x=False)


def _throughput(sides: Mapping[str, Result], title: str) -> Panel:
    order = sorted(sides, key=lambda side: -float(sides[side]["rows_per_second"]["median"]))
    marks: list[Drawable] = []
    for place, side in enumerate(order):
        rate = sides[side]["rows_per_second"]
        spread = ([rate["low"]], [rate["high"]])
        marks.append(Bars([place], [rate["median"]], 0.7, _colour(side), band=spread))
    names = [ENGINES[side].title for side in order]
    return _panel(marks, names, title, "rows per second")


def _latency(sides: Mapping[str, Result]) -> Panel:
    order = sorted(sides, key=lambda side: float(sides[side]["p99_ms"]))
    marks: list[Drawable] = []
    for place, side in enumerate(order):
        facts = sides[side]
        marks.append(Bars([place], [facts["p99_ms"]], 0.7, _colour(side)))
        how = {"marker": "o", "ls": "", "ms": 5, "mec": "white"}
        marks.append(Line([place], [facts["p50_ms"]], colour=GREY, how=how))
    rate = max(int(facts["rate"]) for facts in sides.values())
    names = [_with_rate(SIDES[side].title, int(sides[side]["rate"]), rate) for side in order]
    return _panel(marks, names, f"latency at {rate:,} rows/s: p99 (bar), p50 (dot)", "ms")


def _with_rate(title: str, rate: int, usual: int) -> str:
    """The title of a side, with its rate if it does not hold that of the others."""
    return title if rate == usual else f"{title}, {rate:,}/s"


def _panel(marks: list[Drawable], names: list[str], title: str, y: str) -> Panel:
    places = [float(place) for place in range(len(names))]
    return Panel(marks, y=y, title=title, log="y", ticks=places, names=names, turned=True)


def _colour(side: str) -> str:
    found = [colour for name, colour in _COLOURS.items() if side.startswith(name)]
    return found[0] if found else GREY
