"""Charts of `penstock bench migration`.

Latency is drawn by the second in which rows arrived, each value in the middle of its second. If a run was
repeated, the line is the median and the band goes from the lowest to the highest value. Runs that are
missing in the report are left out, with their panel or file if it would be empty.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock_bench.charts import Bound, Line, Panel, Picture, Pictures, Text, medians
from penstock_bench.migration.bench import LAZY, PAUSE, STRATEGIES
from penstock_bench.report import Result, having
from penstock_bench.style import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY

_COLOURS = dict(zip(STRATEGIES, (BLUE, SKY, ORANGE, GREEN, PINK, RED), strict=True))
_MARKERS = dict(zip(STRATEGIES, "ovD^Ps", strict=True))
_MEASURES = {
    "cumulative_p99_ms": ("cumulative-p99", "p99 latency of all rows so far"),
    "p99_ms": ("p99", "p99 latency by second"),
    "p50_ms": ("p50", "p50 latency by second"),
}
"""Metric in the report -> its name in file names and in titles."""

Lines = dict[str, list[Result]]
"""The runs of all rounds, by strategy."""


def pictures(report: Result) -> Pictures:
    """All charts for which the report has runs."""
    moves: list[Result] = report["results"]["moves"]
    recoveries: list[Result] = report["results"]["recoveries"]
    move_at = int(report["settings"]["move_at"])
    even = having(moves, fraction=0.5, skew=0.0)
    sizes = _sizes(moves)
    charts: Pictures = {}

    def latency(name: str, of: str, what: str, panels: Mapping[str, Lines]) -> None:
        shown = {title: lines for title, lines in panels.items() if lines}
        if shown:
            title = f"{_MEASURES[of][1]}: {what}"
            charts[f"migration-{name}"] = partial(_latency, title, of, shown, move_at)

    fractions = sorted({run["fraction"] for run in moves})
    for size in sizes:
        what = f"a part of {_shown(size)} of state moves, {LAZY} against {PAUSE}"
        panels = {
            f"{part:.0%} of the keys": _lines(
                moves, (LAZY, PAUSE), size=size, fraction=part, skew=0.0
            )
            for part in fractions
        }
        for of, (short, _) in _MEASURES.items():
            if of != "p50_ms" or size == sizes[0]:
                latency(f"{short}-{size}", of, what, panels)
    skews = sorted({run["skew"] for run in moves})
    for size in sizes[-1:] if len(skews) > 1 else ():
        what = f"half of {_shown(size)} of state moves, {LAZY}, by skew of the keys"
        panels = {
            f"zipf {skew:g}" if skew else "uniform": _lines(
                moves, (LAZY,), size=size, fraction=0.5, skew=skew
            )
            for skew in skews
        }
        for of in ("p50_ms", "p99_ms"):
            latency(f"skew-{_MEASURES[of][0]}", of, what, panels)
    by_size = {f"{_shown(size)} of state": _lines(even, STRATEGIES, size=size) for size in sizes}
    latency("strategies", "p99_ms", "half of the state moves, by strategy", by_size)
    if even:
        charts["migration-moved"] = partial(_moved, even)
    if recoveries:
        charts["migration-recovery"] = partial(_recovery, recoveries)
    return charts


def _lines(runs: list[Result], strategies: Iterable[str], **where: Any) -> Lines:
    """The runs with these values, by strategy. Strategies without runs are left out.

    >>> _lines([{"strategy": "pause", "size": "50mb"}], ("lazy(0)", "pause"), size="50mb")
    {'pause': [{'strategy': 'pause', 'size': '50mb'}]}
    """
    lines = {name: having(runs, strategy=name, **where) for name in strategies}
    return {name: line for name, line in lines.items() if line}


def _sizes(runs: list[Result]) -> list[str]:
    """Sizes in the order of the runs: from small to large."""
    return list(dict.fromkeys(run["size"] for run in runs))


def _shown(size: str) -> str:
    """A size as text.

    >>> _shown("50mb")
    '50 MB'
    """
    return f"{size[:-2]} {size[-2:].upper()}"


def _latency(title: str, of: str, panels: Mapping[str, Lines], move_at: int) -> Picture:
    runs = [run for lines in panels.values() for some in lines.values() for run in some]
    seconds = max(len(run["seconds"][of]) for run in runs)
    ticks = range(0, seconds + 1, max(1, seconds // 10))
    return Picture(
        title,
        [
            Panel(
                [
                    *(
                        _line(name, [run["seconds"][of] for run in some])
                        for name, some in lines.items()
                    ),
                    Bound(move_at, "the move is requested", upright=True),
                ],
                x="arrival, seconds into the run",
                y="arrival to sink, ms",
                title=name,
                note=_worst(lines, of, move_at) if len(lines) <= 2 else "",
                log="y",
                x_from=0,
                x_to=seconds,
                ticks=ticks,
            )
            for name, lines in panels.items()
        ],
        columns=len(panels) if len(panels) <= 3 else 2,
        share_y=True,
    )


def _line(strategy: str, rounds: list[list[float]]) -> Line:
    by_second = {second + 0.5: some for second, some in enumerate(zip(*rounds, strict=True))}
    return medians(by_second, strategy, _COLOURS[strategy], marker=_MARKERS[strategy])


def _worst(lines: Lines, of: str, move_at: int) -> str:
    """The worst second from the move on, as in the report's ratios: the median of the rounds."""
    peaks = {
        strategy: statistics.median(max(run["seconds"][of][move_at:]) for run in runs)
        for strategy, runs in lines.items()
    }
    return "worst: " + ", ".join(f"{name} {ms:,.0f} ms" for name, ms in peaks.items())


def _moved(even: list[Result]) -> Picture:
    """One panel per size, one dot per strategy: the median of the rounds."""
    sizes, strategies = _sizes(even), list(_lines(even, STRATEGIES))
    moved = [run["moved_bytes"] / 1e6 for run in even if run["moved_bytes"]] or [1.0]
    panels = []
    for size in sizes:
        marks: list[Line | Text] = []
        for strategy, runs in _lines(even, STRATEGIES, size=size).items():
            mb = statistics.median(run["moved_bytes"] for run in runs) / 1e6
            at = (mb or min(moved) / 4, strategies.index(strategy))
            if mb:
                how = {"marker": _MARKERS[strategy], "ms": 8, "ls": ""}
                marks.append(Line([at[0]], [at[1]], colour=_COLOURS[strategy], how=how))
            text = f"{mb:,.0f} MB" if mb >= 10 else f"{mb:.2g} MB" if mb else "nothing"
            marks.append(Text(text, at, (0, 8), "center" if mb else "left"))
        panels.append(
            Panel(
                marks,
                x="moved, MB",
                title=f"{_shown(size)} of state",
                log="x",
                x_from=min(moved) / 4,
                x_to=max(moved) * 4,
                y_from=len(strategies) - 0.5,
                y_to=-0.9,
                y_names=strategies,
            )
        )
    title = "State that moves with half of the keys, by strategy"
    return Picture(title, panels, columns=len(panels), share_y=True)


def _recovery(recoveries: list[Result]) -> Picture:
    """One dot per kill, and a bar at the median."""
    marks: list[Line | Text] = []
    for at, size in enumerate(_sizes(recoveries)):
        times = [run["recovery_ms"] for run in having(recoveries, size=size)]
        middle = statistics.median(times)
        places = (at + np.linspace(-0.06, 0.06, len(times))).tolist() if len(times) > 1 else [at]
        dots = {"marker": "o", "ls": "", "ms": 8, "mec": "white"}
        marks += [
            Line([at - 0.15, at + 0.15], [middle, middle], "median", INK),
            Line(places, times, "one kill", _COLOURS[LAZY], how=dots),
            Text(f"{middle:,.0f} ms", (at + 0.15, middle), (6, -3)),
        ]
    sizes = [f"{_shown(size)} of state" for size in _sizes(recoveries)]
    panel = Panel(
        marks,
        y="kill to next epoch in the sink, ms",
        names=list(sizes),
        x_from=-0.5,
        x_to=len(sizes) - 0.5,
        y_from=0,
        y_to=max(run["recovery_ms"] for run in recoveries) * 1.2,
    )
    return Picture("Recovery after a host is killed, by size of the state", [panel])
