"""The picture of `penstock bench nexmark`.

A dot is the median of the rounds, the line through it goes from the slowest to the fastest of them.
A query that Spark's own streaming does not run has but one dot.
"""

from __future__ import annotations

from penstock_bench.charts import Line, Panel, Picture, Pictures, Text
from penstock_bench.report import Result
from penstock_bench.style import BLUE, PINK, RED

_SIDES = {
    "penstock": ("Penstock", BLUE, "o"),
    "native": ("Spark (with RocksDB, if there is state)", RED, "s"),
    "native_hdfs": ("Spark with its default store", PINK, "D"),
}
"""What the report calls a side: its name, colour and marker here."""


def pictures(report: Result) -> Pictures:
    """Both sides of every query, and how many times as fast Penstock is."""
    results: dict[str, Result] = report["results"]
    return {"nexmark": lambda: _speeds(results)} if results else {}


def _speeds(results: dict[str, Result]) -> Picture:
    marks: list[Line | Text] = []
    for at, result in enumerate(results.values()):
        sides = {side: result[side] for side in _SIDES if side in result}
        for side, told in sides.items():
            name, colour, marker = _SIDES[side]
            dot = {"marker": marker, "ls": "", "ms": 7, "mec": "white"}
            marks += [
                Line([at, at], [told["low"], told["high"]], colour=colour, how={"lw": 1.4}),
                Line([at], [told["median"]], name, colour, how=dot),
            ]
        if "vs_native" in result:
            top = max(told["high"] for told in sides.values())
            marks.append(Text(_times(result["vs_native"]["median"]), (at, top), (0, 8), "center"))
    panel = Panel(
        marks,
        y="events a second",
        note="above: Penstock over the better of Spark's, the median of the rounds",
        log="y",
        names=list(results),
        x_from=-0.6,
        x_to=len(results) - 0.4,
    )
    return Picture("NEXMark: events a second, by query", [panel])


def _times(ratio: float) -> str:
    """
    >>> _times(2.345), _times(12.3)
    ('2.3×', '12×')
    """
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"
