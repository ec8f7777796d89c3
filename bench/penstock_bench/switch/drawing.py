"""What the pictures of `penstock bench switch` have in common: colours, panels, boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock_bench.pictures import INK, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = dict[str, Any]
"""One result of the report."""

COLOURS = {
    "switch": "#0072B2",
    "switch, unit": "#56B4E9",
    "drs": "#E69F00",
    "drs_lb": "#D55E00",
    "ds2": "#CC79A7",
    "autoflow": "#009E73",
    "static": QUIET,
}
"""One for each kind of policy in all pictures; colour-blind people can tell them apart."""
MARKERS = dict(zip(COLOURS, ("o", "*", "^", "s", "D", "P", "x"), strict=True))
SERIES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7")
"""For lines that are not policies."""


def kind(policy: str) -> str:
    """
    >>> kind("switch(0.2)"), kind("switch(0.2, unit)"), kind("ds2")
    ('switch', 'switch, unit', 'ds2')
    """
    name = policy.partition("(")[0]
    return f"{name}, unit" if "unit" in policy else name


def panels(
    title: str, rows: int, columns: int = 1, sharex: bool = True, sharey: Any = False
) -> tuple[Figure, Any]:
    """A figure of panels that may show different things; and the panels as rows and columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 1.2 + 2.5 * rows), dpi=120)
    figure.suptitle(title, x=0.012, ha="left", size=13, weight="bold")
    return figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", weight="bold")


def percent(axes: Axes) -> None:
    """Show shares of 1 as per cent."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def boxes(
    axes: Axes, groups: Sequence[Sequence[float]], labels: Sequence[str], colour: str
) -> None:
    """A box for each group: quartiles, and whiskers to the least and the most."""
    drawn = axes.boxplot(groups, tick_labels=labels, whis=(0, 100), widths=0.5, patch_artist=True)
    for box in drawn["boxes"]:
        box.set(facecolor=colour, alpha=0.35, edgecolor=colour)
    for part in ("whiskers", "caps"):
        for line in drawn[part]:
            line.set_color(colour)
    for line in drawn["medians"]:
        line.set(color=INK, lw=1.4)
    axes.grid(axis="x", visible=False)


def legend(figure: Figure, handles: dict[str, Any]) -> None:
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(5, len(handles))
    )


def by(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    """Runs by their values of some facts, in the order in which these first come.

    >>> by([{"seed": 1, "alpha": 0.5}, {"seed": 2, "alpha": 0.5}], "alpha").keys()
    dict_keys([(0.5,)])
    """
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(run[name] for name in names), []).append(run)
    return found


def mean(runs: Sequence[Run], of: str) -> float:
    """The mean of a figure over runs; those that lack it do not count."""
    values = [float(run[of]) for run in runs if run[of] is not None]
    return sum(values) / len(values) if values else float("nan")
