"""The pictures of `penstock bench migration`, drawn from its report.

Latency is drawn by the second in which rows arrived, each value in the middle of its second. Where
a run was done several times, the line is their median and the band goes from the least to the most.
A run that the report does not have leaves out its line, its panel or its file.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SettingError
from penstock_bench import pictures
from penstock_bench.migration.bench import LAZY, PAUSE, STRATEGIES
from penstock_bench.pictures import INK, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Run = dict[str, Any]
"""One of the report's moves or recoveries."""

_OKABE_ITO = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00")
COLOURS = dict(zip(STRATEGIES, _OKABE_ITO, strict=True))
"""One for each strategy in all pictures; colour-blind people can tell them apart."""
MARKERS = dict(zip(STRATEGIES, "ovD^Ps", strict=True))

_MEASURES = {
    "cumulative_p99_ms": ("cumulative-p99", "p99 latency of all rows so far"),
    "p99_ms": ("p99", "p99 latency by second"),
    "p50_ms": ("p50", "p50 latency by second"),
}
"""What the report calls it: in file names, and in titles."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all that the report tells into PNG files in this folder, and say which.

    The folder is made if it is not there. Pictures of an earlier report are replaced.
    """
    if report.get("bench") != "migration":
        raise SettingError(
            f"this is no report of bench migration but of {report.get('bench')!r}",
            hint="give one that `penstock bench migration --json FILE` wrote",
        )
    return pictures.save(_pictures(report), folder)


# -- what there is to draw


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: dict[str, list[Run]]
    """By strategy, the runs of all rounds."""


def _pictures(report: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """By file name."""
    moves: list[Run] = report["results"]["moves"]
    recoveries: list[Run] = report["results"]["recoveries"]
    move_at = int(report["settings"]["move_at"])
    even = [run for run in moves if (run["fraction"], run["skew"]) == (0.5, 0.0)]
    sizes = _sizes(moves)
    found: dict[str, Callable[[], Figure]] = {}

    def latency(name: str, of: str, what: str, panels: list[_Panel]) -> None:
        shown = [panel for panel in panels if panel.lines]
        if shown:
            title = f"{_MEASURES[of][1]}: {what}"
            found[f"migration-{name}.png"] = lambda: _latency(title, of, shown, move_at)

    for size in sizes:
        for of, (short, _) in _MEASURES.items():
            if of != "p50_ms" or size == sizes[0]:
                what = f"a part of {_shown(size)} of state moves, {LAZY} against {PAUSE}"
                latency(f"{short}-{size}", of, what, _by_fraction(moves, size))
    for size in sizes[-1:]:
        for of in ("p50_ms", "p99_ms"):
            what = f"half of {_shown(size)} of state moves, {LAZY}, by skew of the keys"
            latency(f"skew-{_MEASURES[of][0]}", of, what, _by_skew(moves, size))
    by_size = [_Panel(f"{_shown(s)} of state", _lines(even, STRATEGIES, size=s)) for s in sizes]
    latency("strategies", "p99_ms", "half of the state moves, by strategy", by_size)
    if even:
        found["migration-moved.png"] = lambda: _moved(even)
    if recoveries:
        found["migration-recovery.png"] = lambda: _recovery(recoveries)
    return found


def _by_fraction(moves: list[Run], size: str) -> list[_Panel]:
    return [
        _Panel(
            f"{fraction:.0%} of the keys",
            _lines(moves, (LAZY, PAUSE), size=size, fraction=fraction, skew=0.0),
        )
        for fraction in sorted({run["fraction"] for run in moves})
    ]


def _by_skew(moves: list[Run], size: str) -> list[_Panel]:
    """None if there is but one: nothing to compare."""
    skews = sorted({run["skew"] for run in moves})
    return [
        _Panel(
            f"zipf {skew:g}" if skew else "uniform",
            _lines(moves, (LAZY,), size=size, fraction=0.5, skew=skew),
        )
        for skew in skews
        if len(skews) > 1
    ]


def _lines(runs: list[Run], strategies: Iterable[str], **where: Any) -> dict[str, list[Run]]:
    """The runs that have these values, by strategy; a strategy without any is left out.

    >>> _lines([{"strategy": "pause", "size": "50mb"}], ("lazy(0)", "pause"), size="50mb")
    {'pause': [{'strategy': 'pause', 'size': '50mb'}]}
    """
    chosen = [run for run in runs if where.items() <= run.items()]
    lines = {name: [run for run in chosen if run["strategy"] == name] for name in strategies}
    return {name: line for name, line in lines.items() if line}


def _sizes(runs: list[Run]) -> list[str]:
    """As the bench went through them: from small to large."""
    return list(dict.fromkeys(run["size"] for run in runs))


def _shown(size: str) -> str:
    """
    >>> _shown("50mb")
    '50 MB'
    """
    return f"{size[:-2]} {size[-2:].upper()}"


# -- latency by second


def _latency(title: str, of: str, panels: list[_Panel], move_at: int) -> Figure:
    figure, axes = pictures.grid(title, len(panels))
    handles: dict[str, Line2D] = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        moving = axis.axvline(move_at, color=INK, lw=1, ls=(0, (4, 3)))
        for strategy, runs in panel.lines.items():
            handles[strategy] = _line(axis, strategy, [run["seconds"][of] for run in runs])
        axis.set_title(panel.title, loc="left", weight="bold")
        if len(panel.lines) <= 2:
            axis.set_title(_worst(panel, of, move_at), loc="right", color=QUIET, size=9)
        axis.set_xlabel("arrival, seconds into the run")
    for axis in axes[:, 0]:
        axis.set_ylabel("arrival to sink, ms")
    drawn = [
        run["seconds"][of] for panel in panels for runs in panel.lines.values() for run in runs
    ]
    seconds = max(len(values) for values in drawn)
    axes[0, 0].set_xlim(0, seconds)
    axes[0, 0].set_xticks(range(0, seconds + 1, max(1, seconds // 10)))
    pictures.log_axis(axes[0, 0], "y", min(map(min, drawn)), max(map(max, drawn)))
    handles["the move is asked for"] = moving
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return figure


def _line(axis: Axes, strategy: str, rounds: list[list[float]]) -> Line2D:
    values = np.array(rounds)
    middles = np.arange(values.shape[1]) + 0.5
    colour = COLOURS[strategy]
    if len(values) > 1:
        axis.fill_between(
            middles, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, lw=0
        )
    (line,) = axis.plot(middles, np.median(values, axis=0), color=colour, marker=MARKERS[strategy])
    return line


def _worst(panel: _Panel, of: str, move_at: int) -> str:
    """The worst second from the move on, as the report's ratios have it: median of the rounds."""
    peaks = {
        strategy: statistics.median(max(run["seconds"][of][move_at:]) for run in runs)
        for strategy, runs in panel.lines.items()
    }
    return "at worst: " + ", ".join(f"{name} {ms:,.0f} ms" for name, ms in peaks.items())


# -- bytes and recoveries


def _moved(even: list[Run]) -> Figure:
    """A panel for each size, a dot for each strategy: the median of the rounds."""
    sizes, strategies = _sizes(even), list(_lines(even, STRATEGIES))
    figure, axes = pictures.grid("State that moves with half of the keys, by strategy", len(sizes))
    least = min((run["moved_bytes"] / 1e6 for run in even if run["moved_bytes"]), default=1.0)
    most = max((run["moved_bytes"] / 1e6 for run in even if run["moved_bytes"]), default=1.0)
    for axis, size in zip(axes.flat, sizes, strict=False):
        axis.set_title(f"{_shown(size)} of state", loc="left", weight="bold")
        axis.set_xlabel("moved, MB")
        for strategy, runs in _lines(even, STRATEGIES, size=size).items():
            mb = statistics.median(run["moved_bytes"] for run in runs) / 1e6
            at = (mb or least / 4, strategies.index(strategy))
            if mb:
                axis.plot(*at, color=COLOURS[strategy], marker=MARKERS[strategy], ms=8)
            text = f"{mb:,.0f} MB" if mb >= 10 else f"{mb:.2g} MB" if mb else "nothing"
            pictures.beside(axis, text, at, (0, 8), ha="center" if mb else "left")
    pictures.log_axis(axes[0, 0], "x", least / 4, most * 4)
    axes[0, 0].set_ylim(len(strategies) - 0.5, -0.9)
    axes[0, 0].set_yticks(range(len(strategies)), strategies)
    return figure


def _recovery(recoveries: list[Run]) -> Figure:
    """A dot for each kill, and a bar at the median."""
    sizes = _sizes(recoveries)
    figure, axes = pictures.grid("Recovery from a host that is killed, by size of the state", 1)
    axis = axes[0, 0]
    for at, size in enumerate(sizes):
        times = [run["recovery_ms"] for run in recoveries if run["size"] == size]
        middle = statistics.median(times)
        (bar,) = axis.plot([at - 0.15, at + 0.15], [middle, middle], color=INK)
        places = at + np.linspace(-0.06, 0.06, len(times)) if len(times) > 1 else [at]
        (dots,) = axis.plot(places, times, "o", color=COLOURS[LAZY], ms=8, mec="white")
        pictures.beside(axis, f"{middle:,.0f} ms", (at + 0.15, middle), (6, -3))
    axis.set_xticks(range(len(sizes)), [f"{_shown(size)} of state" for size in sizes])
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(0, max(run["recovery_ms"] for run in recoveries) * 1.2)
    axis.yaxis.set_major_formatter(pictures.plain())
    axis.set_ylabel("kill to next epoch in the sink, ms")
    axis.grid(axis="x", visible=False)
    figure.legend([dots, bar], ["one kill", "median"], loc="outside lower center", ncols=2)
    return figure
