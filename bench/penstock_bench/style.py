"""The style of all charts: plain, with colours that colour-blind people can distinguish, in small files."""

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

INK, QUIET, GREY, _PALE = "#222222", "#666666", "#999999", "#E4E4E4"
BLUE, ORANGE, GREEN, RED, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
SKY, SAND = "#56B4E9", "#F0C75E"
SERIES = (BLUE, ORANGE, GREEN, RED, PINK)
"""Colours of lines without a fixed colour of their own."""
DPI, WIDTH_INCHES = 120, 10.0
_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
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


def save(drawings: Mapping[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Draw charts into PNG files of these names in this folder, which is created if needed.

    The same drawing gives the same bytes, since files contain neither date nor version.
    """
    try:
        import matplotlib
    except ImportError as missing:
        raise SettingError(
            "charts need matplotlib, which is not installed",
            hint="pip install matplotlib",
        ) from missing
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        return [_saved(drawing(), folder / name) for name, drawing in drawings.items()]


def _saved(figure: Figure, file: Path) -> Path:
    """Write a figure with a palette, which reduces its size to a third."""
    from PIL import Image

    pixels = io.BytesIO()
    figure.savefig(pixels, format="rgba", dpi=DPI)
    image = Image.frombytes("RGBA", figure.canvas.get_width_height(), pixels.getvalue())
    image.convert("RGB").quantize(128).save(file, "PNG")
    return file


def log_axis(axes: Axes, which: Literal["x", "y"], least: float, most: float) -> None:
    """Make an axis logarithmic, with plain numbers and some margin. It covers at least a decade, so that
    flat lines look flat."""
    from matplotlib.ticker import LogLocator

    low, high = least / 1.5, most * 1.5
    widen = max(1.0, (10 * low / high) ** 0.5)
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low / widen, high * widen)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_major_formatter(plain_numbers())
    axis.minorticks_off()


def plain_numbers() -> FuncFormatter:
    """A formatter that writes 1,000 rather than 10³."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(
        lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:g}"
    )
