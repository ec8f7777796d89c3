"""The picture of `penstock bench nexmark`.

A dot is the median of the rounds; the line through it goes from the slowest to the fastest round.
A query that Spark's own streaming cannot run has one dot.
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
"""Side in the report -> its name, colour and marker in the picture."""


def pictures(report: Result) -> Pictures:
    """The picture of both sides' speed for every query, if the report has results."""
    results: dict[str, Result] = report["results"]
    return {"nexmark": lambda: _speeds(results)} if results else {}


def _speeds(results: dict[str, Result]) -> Picture:
    marks: list[Line | Text] = []
    for at, result in enumerate(results.values()):
        sides = {side: result[side] for side in _SIDES if side in result}
        for side, sample in sides.items():
            name, colour, marker = _SIDES[side]
            dot = {"marker": marker, "ls": "", "ms": 7, "mec": "white"}
            marks += [
                Line([at, at], [sample["low"], sample["high"]], colour=colour, how={"lw": 1.4}),
                Line([at], [sample["median"]], name, colour, how=dot),
            ]
        if "vs_native" in result:
            top = max(sample["high"] for sample in sides.values())
            marks.append(Text(_times(result["vs_native"]["median"]), (at, top), (0, 8), "center"))
    panel = Panel(
        marks,
        y="events per second",
        note="above: Penstock's speed divided by the faster Spark's, median of the rounds",
        log="y",
        names=list(results),
        x_from=-0.6,
        x_to=len(results) - 0.4,
    )
    return Picture("NEXMark: events per second, by query", [panel])


def _times(ratio: float) -> str:
    """
    >>> _times(2.345), _times(12.3)
    ('2.3×', '12×')
    """
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"
