"""The picture of `penstock bench nexmark`, drawn from its report.

A dot is the median of the rounds, the line through it goes from the slowest to the fastest of them.
A query that Spark's own streaming does not run has but one dot.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_bench import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_SIDES = {
    "penstock": ("Penstock", "#0072B2", "o"),
    "native": ("Spark (with RocksDB, if there is state)", "#D55E00", "s"),
    "native_hdfs": ("Spark with its default store", "#CC79A7", "D"),
}
"""What the report calls a side: its name, colour and marker here."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what the report tells into a PNG file in this folder, and say which.

    The folder is made if it is not there. A picture of an earlier report is replaced.
    """
    results = pictures.results_of(report, "nexmark")
    drawings = {"nexmark.png": lambda: _speeds(results)} if results else {}
    return pictures.save(drawings, folder)


def _speeds(results: dict[str, Any]) -> Figure:
    """Both sides of every query, and how many times as fast Penstock is."""
    figure, axes = pictures.grid("NEXMark: events a second, by query", 1)
    axis: Axes = axes[0, 0]
    handles: dict[str, Line2D] = {}
    for at, result in enumerate(results.values()):
        for side, (name, colour, marker) in _SIDES.items():
            if side in result:
                low, high = result[side]["low"], result[side]["high"]
                axis.plot([at, at], [low, high], color=colour, lw=1.4)
                (handles[name],) = axis.plot(
                    at, result[side]["median"], marker, color=colour, ms=7, mec="white"
                )
        if "vs_native" in result:
            top = max(result[side]["high"] for side in _SIDES if side in result)
            text = _times(result["vs_native"]["median"])
            pictures.beside(axis, text, (at, top), (0, 8), ha="center")
    speeds = [result[side] for result in results.values() for side in _SIDES if side in result]
    least, most = min(s["low"] for s in speeds), max(s["high"] for s in speeds)
    pictures.log_axis(axis, "y", least, most * 1.2)
    axis.set_xticks(range(len(results)), list(results))
    axis.set_xlim(-0.6, len(results) - 0.4)
    axis.set_ylabel("events a second")
    axis.grid(axis="x", visible=False)
    axis.set_title(
        "above: Penstock over the better of Spark's, the median of the rounds",
        loc="left",
        color=pictures.QUIET,
        size=9,
    )
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return figure


def _times(ratio: float) -> str:
    """
    >>> _times(2.345), _times(12.3)
    ('2.3×', '12×')
    """
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"
