"""Plots of a recorded run as PNG files for documents: latency, input, hosts, slots, epochs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.extensions import imported
from penstock.observe.dashboard.series import (
    Columns,
    columns,
    marks,
    marks_by_hand,
    moves,
    point_of,
    thinned,
)
from penstock.observe.moment import Moment, StepMoment
from penstock.observe.recording import Recording, whole_recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 900
"""Points of a line at most: more than a document's page can show."""
_INK, _QUIET, _GREY, _PALE = "#222222", "#666666", "#999999", "#E4E4E4"
_BLUE, _ORANGE, _GREEN, _RED, _PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
_SKY, _SAND = "#56B4E9", "#F0C75E"
_HOSTS = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _SAND, _RED, "#7A5195", "#4C6B3C", "#9A6324")
"""Colours of hosts, which colour-blind people can tell apart. They repeat after the last."""
_MARKS = {
    "scale out": (_GREEN, "^"), "scale in": (_ORANGE, "v"), "balance": (_SKY, "D"),
    "host lost": (_RED, "X"), "host leaves": (_RED, "x"), "hot key": (_PINK, "*"),
    "setting": (_GREY, "s"), "offload": (_SAND, "o"), "couriers": (_GREY, "P"),
    "split": (_PINK, "d"), "failed": (_RED, "1"),
    "move by hand": (_BLUE, "D"), "scale by hand": (_BLUE, "^"),
}  # fmt: skip
"""Colour and sign of each kind of event."""
_OTHER_MARK = (_GREY, ".")
"""Those of a kind that is not named here, such as one of another release."""
_DPI, _INCHES = 120, (10.0, 3.6)
_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GREY,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.0,
    "grid.color": _PALE,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What the plots are drawn from."""

    moments: Sequence[Moment]
    series: Columns
    events: Sequence[dict[str, Any]]
    unit_ms: float
    """Milliseconds of a unit of the time axis."""
    begin_ms: float

    def times(self, times_ms: Sequence[Any]) -> Any:
        return (np.array(times_ms, dtype=np.float64) - self.begin_ms) / self.unit_ms

    @property
    def x(self) -> Any:
        return self.times(self.series["time_ms"])

    def y(self, name: str) -> Any:
        column = self.series[name]
        return np.array([np.nan if v is None else v for v in column], dtype=np.float64)

    def figure(self, title: str, height: float = 1.0, panels: int = 1) -> tuple[Figure, list[Axes]]:
        """A figure with panels one above the other, which share the time axis."""
        # Without pyplot: it keeps figures of the whole process, and is not for threads.
        module = imported("matplotlib.figure", "report", "a PNG of a report")
        figure = module.Figure(figsize=(_INCHES[0], _INCHES[1] * height))
        all_axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0].tolist()
        all_axes[0].set_title(title)
        unit = {1000.0: "seconds", 60_000.0: "minutes", 3_600_000.0: "hours"}[self.unit_ms]
        all_axes[-1].set_xlabel(f"{unit} since the start")
        return figure, all_axes


def save_plots(recording: Recording, folder: str | Path) -> list[Path]:
    """Draw the plots of a recording into a folder, which is made if needed. Returns the files.

    Needs the extra `report`. What a run did not have is left out: a plot of slots needs a keyed step.
    """
    matplotlib = imported("matplotlib", "report", "a PNG of a report")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    drawn = _drawn(recording)
    with matplotlib.rc_context(_STYLE):
        figures = {name: draw(drawn) for name, draw in _PLOTS.items()}
        return [
            _saved(figure, place / f"{name}.png")
            for name, figure in figures.items()
            if figure is not None
        ]


def _drawn(recording: Recording) -> _Drawn:
    recording = whole_recording(recording)
    moments = recording.moments()
    points = thinned([point_of(moment) for moment in moments], _POINTS)
    seconds = sum(moment.seconds for moment in moments)
    unit_ms = 1000.0 if seconds <= 600 else 60_000.0 if seconds <= 4 * 3600 else 3_600_000.0
    begin_ms = recording.facts.started_ms
    entries, moved = recording.entries(), [move for moment in moments for move in moves(moment)]
    events = [*marks(entries), *marks_by_hand(moved, entries, recording.facts.slots)]
    return _Drawn(moments, columns(points), events, unit_ms, begin_ms)


def _latency(drawn: _Drawn) -> Figure | None:
    if not np.isfinite(drawn.y("mean_ms")).any():
        return None
    figure, (axes,) = drawn.figure("Latency of rows, from arrival to the sink")
    axes.plot(drawn.x, drawn.y("p99_ms"), color=_SKY, label="p99", lw=1.1)
    axes.plot(drawn.x, drawn.y("mean_ms"), color=_BLUE, label="average")
    lines = _bound_lines(drawn.moments)
    for (kind, step), (times_ms, limits_ms) in lines.items():
        of = "" if step is None else f" of {step}"
        style = _BOUND_LINES[kind] if step is None else (0, (1, 2))
        label = f"SLA, {'average' if kind == 'mean' else kind}{of}"
        axes.plot(drawn.times(times_ms), limits_ms, color=_RED, ls=style, label=label, lw=1.2)
    if lines:
        missed = _missed(drawn)
        if missed.any():
            whole_height: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "lw": 0}
            look = whole_height | {"color": _RED, "alpha": 0.12, "label": "missed"}
            axes.fill_between(drawn.x, 0, 1, where=missed, step="pre", **look)
    most, least = (f(drawn.y("p99_ms")) for f in (np.nanmax, np.nanmin))
    if most > 30 * max(least, 1.0):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel("ms")
    _legend(axes)
    return figure


def _missed(drawn: _Drawn) -> Any:
    """Whether any bound of the SLA was missed, by point of the series."""
    times_ms = [m.time_ms for m in drawn.moments if any(b.kept < b.windows for b in m.all_bounds)]
    found = np.zeros(len(drawn.series["time_ms"]), dtype=bool)
    ends_ms = np.array(drawn.series["time_ms"], dtype=np.float64)
    found[np.searchsorted(ends_ms, times_ms).clip(max=len(found) - 1)] = True
    return found


_BOUND_LINES = {"mean": (0, (4, 3)), "p99": (0, (6, 2, 1, 2))}
"""Figure that a bound of the flow is on -> dashes of its line."""


def _bound_lines(
    moments: Sequence[Moment],
) -> dict[tuple[str, str | None], tuple[list[float], list[float]]]:
    """Figure and step of each bound of the SLA -> times, and the bound in milliseconds at each."""
    lines: dict[tuple[str, str | None], tuple[list[float], list[float]]] = {}
    for moment in moments:
        for bound in moment.all_bounds:
            times_ms, limits_ms = lines.setdefault((bound.kind, bound.step), ([], []))
            times_ms.append(moment.time_ms)
            limits_ms.append(bound.latency_ms)
    return lines


def _input(drawn: _Drawn) -> Figure | None:
    figure, (rate, backlog) = drawn.figure("Input and backlog", 1.3, panels=2)
    rate.plot(drawn.x, drawn.y("rate"), color=_BLUE)
    rate.set_ylabel("input, rows/s")
    backlog.fill_between(drawn.x, drawn.y("backlog"), color=_ORANGE, alpha=0.5, lw=0)
    backlog.set_ylabel("rows that wait")
    for axes in (rate, backlog):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def _hosts(drawn: _Drawn) -> Figure | None:
    hosts, functions = drawn.y("hosts"), drawn.y("functions")
    if not any(moment.steps for moment in drawn.moments):
        return None
    figure, (axes,) = drawn.figure("Hosts, and what was done")
    axes.step(drawn.x, hosts, where="pre", color=_INK, label="hosts")
    if functions.any():
        axes.step(drawn.x, functions, where="pre", color=_PINK, label="functions")
    top = max(hosts.max(initial=0), functions.max(initial=0)) + 1
    for kind, at in _marked(drawn.events).items():
        colour, sign = _MARKS.get(kind, _OTHER_MARK)
        places = drawn.times(at)
        axes.vlines(places, 0, top - 0.5, color=colour, lw=0.8, alpha=0.6)
        heights = np.full(len(places), top - 0.5)
        axes.plot(places, heights, sign, color=colour, ls="", ms=6, label=kind)
    axes.set_ylim(0, top)
    axes.locator_params(axis="y", integer=True)
    axes.set_ylabel("number")
    _legend(axes)
    return figure


def _marked(events: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Kind of event -> its times, in the order of `_MARKS`. A treatment of several kinds counts as each."""
    times: dict[str, list[float]] = {kind: [] for kind in _MARKS}
    for event in events:
        for kind in event["kind"].split(", "):
            times.setdefault(kind, []).append(event["time_ms"])
    return {kind: at for kind, at in times.items() if at}


def _slots(drawn: _Drawn) -> Figure | None:
    steps = list(dict.fromkeys(step.step for m in drawn.moments for step in m.steps))
    if not steps:
        return None
    figure, panels = drawn.figure(
        "Owner of each slot: moves are changes of colour", 1.0 * len(steps), len(steps)
    )
    matplotlib = imported("matplotlib", "report", "a PNG of a report")
    every = max(1, len(drawn.moments) // _POINTS)
    for axes, step_name in zip(panels, steps, strict=True):
        seen = [
            (moment.time_ms, moment.seconds, step)
            for moment in drawn.moments[::every]
            for step in moment.steps
            if step.step == step_name
        ]
        owning = {step.hosts[at].host for _, _, step in seen for at in _owners(step) if at >= 0}
        numbers = {host: number for number, host in enumerate(sorted(owning, key=_natural))}
        if not numbers:  # no host has come up yet
            axes.set_ylabel(f"slot of {step_name}")
            continue
        most = max(len(step.owner) for _, _, step in seen)  # split slots have more
        owners = np.full((len(seen), most), np.nan)
        for column, (_, _, step) in enumerate(seen):
            for slot, at in enumerate(_owners(step)):
                owners[column, slot] = numbers[step.hosts[at].host] if at >= 0 else np.nan
        colours = [_HOSTS[n % len(_HOSTS)] for n in range(len(numbers))]
        begin_ms = seen[0][0] - 1000 * seen[0][1]
        edges = drawn.times([begin_ms, *(time_ms for time_ms, _, _ in seen)])
        axes.pcolormesh(
            edges,
            np.arange(most + 1) - 0.5,
            owners.T,
            cmap=matplotlib.colors.ListedColormap(colours),
            vmin=-0.5,
            vmax=len(colours) - 0.5,
            rasterized=True,
        )
        axes.set_ylabel(f"slot of {step_name}")
        axes.grid(visible=False)
        if len(numbers) <= len(_HOSTS):
            for host, number in numbers.items():
                axes.plot([], [], "s", color=colours[number], label=host, ms=7)
            _legend(axes)
    return figure


def _owners(step: StepMoment) -> list[int]:
    """Index of each slot's host; -1 if it has none, as before the first host is up."""
    return [owner if 0 <= owner < len(step.hosts) else -1 for owner in step.owner]


def _epochs(drawn: _Drawn) -> Figure | None:
    phases = [drawn.y(name) for name in ("read_ms", "process_ms", "seal_ms")]
    if not np.isfinite(phases[0]).any():
        return None
    figure, (axes,) = drawn.figure("Time of an epoch, and where it goes")
    names = ("read and send", "process and write", "make durable")
    known = np.isfinite(phases[0])
    heights = [phase[known] for phase in phases]
    axes.stackplot(drawn.x[known], heights, labels=names, colors=(_SKY, _BLUE, _SAND), lw=0)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend(axes)
    return figure


_PLOTS: dict[str, Callable[[_Drawn], Figure | None]] = {
    "latency": _latency, "input": _input, "hosts": _hosts, "slots": _slots, "epochs": _epochs,
}  # fmt: skip


def _natural(host: str) -> tuple[str, int]:
    """Sort key by which clicks/9 comes before clicks/10."""
    step, _, number = host.rpartition("/")
    return step, int(number) if number.isdigit() else 0


def _legend(axes: Axes) -> None:
    """A legend beside the plot, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _saved(figure: Figure, file: Path) -> Path:
    """Write a figure with a palette, which reduces its size to a third."""
    image_module = imported("PIL.Image", "report", "a PNG of a report")
    pixels = io.BytesIO()
    figure.savefig(pixels, format="rgba", dpi=_DPI)
    size = tuple(int(inches * _DPI) for inches in figure.get_size_inches())
    image = image_module.frombytes("RGBA", size, pixels.getvalue())
    image.convert("RGB").quantize(128).save(file, "PNG")
    return file
