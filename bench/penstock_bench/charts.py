"""Charts as data: panels with lines, bars, boxes and bounds, and the function that draws them.

Each benchmark has a file `pictures.py` that makes its charts from a report.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.errors import SettingError
from penstock_bench import style
from penstock_bench.report import Result
from penstock_bench.style import INK, QUIET, log_axis, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Pictures = dict[str, Callable[[], "Picture"]]
"""File name without .png -> a function that makes the chart."""
DASHED: Any = (0, (4, 3))
_ROW_CHARACTERS, _SIGN_CHARACTERS = 110, 6
"""Width of a legend's row, and of the symbol before a name, in characters."""


# -- marks


class Drawable(ABC):
    """A mark in a panel."""

    name: str
    """Name in the legend; empty for no entry."""

    @abstractmethod
    def draw(self, axes: Axes) -> Any:
        """Draw it; returns the handle for the legend."""

    def heights(self) -> Iterable[float | None]:
        """Values that the vertical axis must include."""
        return ()


@dataclass(frozen=True)
class Line(Drawable):
    """A line, or points if `how` has ls=""."""

    places: Sequence[float]
    values: Numbers
    name: str = ""
    colour: str = INK
    band: tuple[Numbers, Numbers] | None = None
    """Lowest and highest values at each place."""
    steps: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments for matplotlib, such as marker and ls."""

    def draw(self, axes: Axes) -> Any:
        if self.band is not None:
            axes.fill_between(
                self.places, *map(_known, self.band), color=self.colour, alpha=0.2, lw=0
            )
        if self.steps:
            return axes.step(
                self.places, _known(self.values), where="mid", color=self.colour, **self.how
            )[0]
        return axes.plot(self.places, _known(self.values), color=self.colour, **self.how)[0]

    def heights(self) -> Iterable[float | None]:
        return [*self.values, *(value for edge in self.band or () for value in edge)]


@dataclass(frozen=True)
class Bars(Drawable):
    """Bars, with whiskers from the lowest to the highest value if there is a band."""

    places: Sequence[float]
    values: Sequence[float]
    width: float
    colour: str
    name: str = ""
    band: tuple[Sequence[float], Sequence[float]] | None = None

    def draw(self, axes: Axes) -> Any:
        spread = None
        if self.band is not None:
            least, most = self.band
            spread = [np.subtract(self.values, least), np.subtract(most, self.values)]
        whiskers = {"ecolor": INK, "lw": 1}
        return axes.bar(
            *(self.places, self.values, 0.92 * self.width),
            color=self.colour,
            yerr=spread,
            error_kw=whiskers,
        )

    def heights(self) -> Iterable[float | None]:
        return [*self.values, *(value for edge in self.band or () for value in edge)]


@dataclass(frozen=True)
class Boxes(Drawable):
    """One box per group of values: quartiles, and whiskers to the lowest and highest value."""

    groups: Sequence[Sequence[float]]
    colours: Sequence[str]
    """One colour per group."""
    places: Sequence[float] | None = None
    """Horizontal positions; None for 0, 1, 2 ..."""
    width: float = 0.5
    name: str = ""

    def draw(self, axes: Axes) -> Any:
        places = range(len(self.groups)) if self.places is None else self.places
        drawn = axes.boxplot(
            self.groups,
            positions=places,
            whis=(0, 100),
            widths=self.width,
            patch_artist=True,
            manage_ticks=False,
        )
        for box, colour in zip(drawn["boxes"], self.colours, strict=True):
            box.set(facecolor=colour, alpha=0.45, edgecolor=colour)
        for part in ("whiskers", "caps"):
            for line, colour in zip(drawn[part], np.repeat(self.colours, 2), strict=True):
                line.set_color(colour)
        for line in drawn["medians"]:
            line.set(color=INK, lw=1.4)
        return drawn["boxes"][0]

    def heights(self) -> Iterable[float | None]:
        return [value for group in self.groups for value in group]


@dataclass(frozen=True)
class Bound(Drawable):
    """A dashed line: horizontal at a value, or vertical at a place."""

    at: float
    name: str = ""
    upright: bool = False

    def draw(self, axes: Axes) -> Any:
        across = axes.axvline if self.upright else axes.axhline
        return across(self.at, color=INK, lw=1, ls=DASHED)


@dataclass(frozen=True)
class Shade(Drawable):
    """A grey vertical band, such as a span of time."""

    start: float
    end: float
    name: str = ""

    def draw(self, axes: Axes) -> Any:
        return axes.axvspan(self.start, self.end, color=INK, alpha=0.06, lw=0)


@dataclass(frozen=True)
class Text(Drawable):
    """A small text near a point."""

    text: str
    at: tuple[float, float]
    by: tuple[int, int] = (4, 3)
    """Offset from the point, in typographic points."""
    align: str = "left"
    name: str = ""

    def draw(self, axes: Axes) -> Any:
        return axes.annotate(
            self.text,
            self.at,
            self.by,
            textcoords="offset points",
            size=9,
            color=INK,
            ha=self.align,
        )

    def heights(self) -> Iterable[float | None]:
        return [1.25 * self.at[1]]


def _known(values: Numbers) -> Any:
    """The values as an array, with nan for None, which leaves gaps in a line."""
    return np.array([np.nan if value is None else value for value in values], float)


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its marks."""

    marks: Sequence[Drawable]
    x: str = ""
    """Label of the horizontal axis, with its unit."""
    y: str = ""
    """Label of the vertical axis, with its unit."""
    title: str = ""
    note: str = ""
    """Small text to the right of the title."""
    log: Literal["", "x", "y", "xy"] = ""
    """Axes with a logarithmic scale."""
    percent: bool = False
    """Whether values are shares of 1, shown as per cent."""
    ticks: Sequence[float] | None = None
    """Ticks of the horizontal axis."""
    names: Sequence[str] = ()
    """Labels of the horizontal positions 0, 1, 2 ..."""
    x_from: float | None = None
    x_to: float | None = None
    y_from: float | None = None
    y_to: float | None = None
    y_names: Sequence[str] = ()
    """Labels of the vertical positions 0, 1, 2 ..."""
    own_legend: bool = False
    """Whether the legend is in the panel, not below the chart."""
    turned: bool = False
    """Whether tick labels are small and vertical, for when there are many."""


@dataclass(frozen=True)
class Picture:
    """A chart: panels under a title, row by row."""

    title: str
    panels: Sequence[Panel]
    columns: int = 1
    share_x: bool | Literal["col"] = True
    share_y: bool | Literal["row"] = False
    """Whether panels share the vertical axis. Panels that share an axis have the same limits and one
    label."""
    legend: Sequence[str] = ()
    """Names that come first in the legend, in this order; the others follow in the order of drawing."""


# -- drawing


def draw(
    bench: str, pictures: Callable[[Result], Pictures], report: Result, folder: Path
) -> list[Path]:
    """Draw all charts of a report into PNG files in this folder; returns the files.

    The folder is created if needed. Charts of an earlier report are replaced.
    """
    if report.get("bench") != bench:
        raise SettingError(
            f"this is not a report of bench {bench} but of {report.get('bench')!r}",
            hint=f"use a report written by `penstock bench {bench} --json FILE`",
        )
    made = pictures(report)
    return style.save({f"{name}.png": _drawing(make) for name, make in made.items()}, folder)


def _drawing(make: Callable[[], Picture]) -> Callable[[], Figure]:
    return lambda: figure_of(make())


def figure_of(picture: Picture) -> Figure:
    """Draw a chart as a matplotlib figure."""
    from matplotlib.figure import Figure

    columns = picture.columns
    rows = -(-len(picture.panels) // columns)
    figure = Figure(figsize=(style.WIDTH_INCHES, 1.3 + 2.6 * rows), dpi=style.DPI)
    figure.suptitle(picture.title, x=0.012, ha="left", size=13, weight="bold")
    axes = figure.subplots(
        rows, columns, sharex=picture.share_x, sharey=picture.share_y, squeeze=False
    )
    for unused in axes.flat[len(picture.panels) :]:
        unused.remove()
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes.flat, picture.panels, strict=False):
        named = {mark.name: mark.draw(axis) for mark in panel.marks}
        named.pop("", None)
        if panel.own_legend:
            axis.legend(named.values(), named.keys(), loc="upper right")
        else:
            handles.update(named)
    # Axes are set last, when all marks are drawn and their limits are known.
    for number, (axis, panel) in enumerate(zip(axes.flat, picture.panels, strict=False)):
        row, column = divmod(number, columns)
        shown = panel
        if picture.share_x and number + columns < len(picture.panels):
            shown = replace(shown, x="")
        if column and (picture.share_y or panel.y == picture.panels[row * columns].y):
            shown = replace(shown, y="")
        _set_axes(axis, shown, _peers(picture, row))
    if handles:
        names = [name for name in picture.legend if name in handles]
        names += [name for name in handles if name not in names]
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside lower center",
            ncols=_legend_columns(names),
        )
    return figure


def _legend_columns(names: Sequence[str]) -> int:
    """Number of columns of a legend: one row if all names fit, else columns as wide as the longest name."""
    widths = [len(name) + _SIGN_CHARACTERS for name in names]
    return len(names) if sum(widths) <= _ROW_CHARACTERS else min(5, _ROW_CHARACTERS // max(widths))


def _peers(picture: Picture, row: int) -> Sequence[Panel] | None:
    """Panels that share the vertical axis with those of a row; None if each has its own."""
    if picture.share_y == "row":
        return picture.panels[row * picture.columns : (row + 1) * picture.columns]
    return picture.panels if picture.share_y else None


def _set_axes(axes: Axes, panel: Panel, peers: Sequence[Panel] | None) -> None:
    from matplotlib.ticker import PercentFormatter

    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif not panel.y_names:
        axes.yaxis.set_major_formatter(plain_numbers())
    if "x" in panel.log:
        places = [at for mark in panel.marks if isinstance(mark, Line) for at in mark.places]
        low, high = panel.x_from or min(places), panel.x_to or max(places)
        log_axis(axes, "x", low, high)
    elif (panel.x_from, panel.x_to) != (None, None):
        axes.set_xlim(panel.x_from, panel.x_to)
    if "y" in panel.log:
        log_axis(axes, "y", *_reach(peers or [panel]))
    elif (panel.y_from, panel.y_to) != (None, None):
        axes.set_ylim(panel.y_from, panel.y_to)
    if panel.ticks is not None:
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axes.minorticks_off()
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.grid(axis="x", visible=False)
    if panel.y_names:
        axes.set_yticks(range(len(panel.y_names)), panel.y_names)
    if panel.turned:
        axes.tick_params(axis="x", labelrotation=90, labelsize=7)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, loc="left", weight="bold")
    axes.set_title(panel.note, loc="right", color=QUIET, size=9)


def _reach(panels: Sequence[Panel]) -> tuple[float, float]:
    """Lowest and highest positive value of these panels."""
    heights = [value for panel in panels for mark in panel.marks for value in mark.heights()]
    shown = [value for value in heights if value is not None and value > 0]
    return min(shown), max(shown)


# -- marks made from several results


def medians(rounds: Mapping[float, Sequence[float]], name: str, colour: str, **how: Any) -> Line:
    """A line through the medians of rounds, with a band from the lowest to the highest value.

    >>> medians({1: [3.0, 1.0, 2.0]}, "one", "red").values
    [2.0]
    """
    band = ([min(some) for some in rounds.values()], [max(some) for some in rounds.values()])
    middles = [statistics.median(some) for some in rounds.values()]
    return Line(list(rounds), middles, name, colour, band, how=how)


def bar_groups(
    sides: Mapping[str, tuple[str, Sequence[Sequence[float]]]], whiskers: bool = True
) -> list[Drawable]:
    """Groups of bars at 0, 1, 2 ..., with one bar per side in each. A side has a name, a colour and values
    by place.

    A bar is the median of its values; whiskers go from the lowest to the highest.
    """
    width, marks = 0.84 / len(sides), list[Drawable]()
    for number, (name, (colour, groups)) in enumerate(sides.items()):
        shift = (number - (len(sides) - 1) / 2) * width
        band = ([min(some) for some in groups], [max(some) for some in groups])
        middles = [statistics.median(some) for some in groups]
        places = [place + shift for place in range(len(groups))]
        marks.append(Bars(places, middles, width, colour, name, band if whiskers else None))
    return marks
