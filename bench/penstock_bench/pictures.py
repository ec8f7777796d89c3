"""How the pictures of a bench are made: one plain style, small files, matplotlib only when asked for."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

INK, QUIET, _PALE = "#222222", "#666666", "#E4E4E4"
_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.titlesize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _PALE,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
_DPI, _WIDTH_INCHES, _ROW_INCHES, _TITLE_INCHES = 120, 10.0, 2.7, 1.1


def results_of(report: dict[str, Any], bench: str) -> dict[str, Any]:
    """What a report of this bench tells; any other is refused."""
    if report.get("bench") != bench:
        raise SettingError(
            f"this is no report of bench {bench} but of {report.get('bench')!r}",
            hint=f"give one that `penstock bench {bench} --json FILE` wrote",
        )
    results: dict[str, Any] = report["results"]
    return results


def save(drawings: Mapping[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Draw them into PNG files of these names in this folder, which is made if it is not there.

    The same drawing gives the same bytes: neither a date nor a version goes into a file.
    """
    try:
        import matplotlib
    except ImportError as missing:
        raise SettingError(
            "pictures are drawn with matplotlib, which is not installed",
            hint="pip install matplotlib",
        ) from missing
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        return [_saved(drawing(), folder / name) for name, drawing in drawings.items()]


def _saved(figure: Figure, file: Path) -> Path:
    """With a palette: a third of the size."""
    from PIL import Image

    pixels = io.BytesIO()
    figure.savefig(pixels, format="rgba", dpi=_DPI)
    image = Image.frombytes("RGBA", figure.canvas.get_width_height(), pixels.getvalue())
    image.convert("RGB").quantize(128).save(file, "PNG")
    return file


def grid(title: str, panels: int) -> tuple[Figure, Any]:
    """A figure with panels that share their axes, and the panels as rows and columns."""
    from matplotlib.figure import Figure

    columns = panels if panels <= 3 else 2
    rows = -(-panels // columns)
    height = _TITLE_INCHES + _ROW_INCHES * rows + (0.5 if rows == 1 else 0)
    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DPI)
    figure.suptitle(title, x=0.012, ha="left", size=13, weight="bold")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for unused in axes.flat[panels:]:
        unused.remove()
    for axis in axes.flat[: panels - columns]:
        axis.xaxis.label.set_visible(False)
    return figure, axes


def log_axis(axes: Axes, which: Literal["x", "y"], least: float, most: float) -> None:
    """Plain numbers, some room, and a decade at the least: what is flat must look flat."""
    from matplotlib.ticker import LogLocator

    low, high = least / 1.5, most * 1.5
    widen = max(1.0, (10 * low / high) ** 0.5)
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low / widen, high * widen)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_major_formatter(plain())
    axis.minorticks_off()


def plain() -> FuncFormatter:
    """1,000 rather than 10³."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def beside(axes: Axes, text: str, at: tuple[float, float], by: tuple[int, int], **how: Any) -> None:
    """A small text so many points from there."""
    axes.annotate(text, at, by, textcoords="offset points", size=9, color=INK, **how)
