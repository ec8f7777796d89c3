"""Pictures of the sweeps: parameters, kinds of hosts, waves, delays, splits of a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_bench.pictures import INK
from penstock_bench.switch.drawing import (
    COLOURS,
    SERIES,
    Run,
    boxes,
    by,
    legend,
    mean,
    panels,
    percent,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TREATMENTS = {"scale_out": "scale out", "scale_in": "scale in", "balance": "balance"}


# -- l and delta


def parameters(runs: list[Run]) -> Figure:
    """Success and hosts, by the alert l and by the time slot delta."""
    figure, axes = panels("The alert l and the time slot δ: success and hosts", 2, 2, sharey="row")
    for column, of in enumerate(("alert_ms", "delta_ms")):
        lines = _along(runs, of)
        places = list(lines)
        for row, measure in enumerate(("success", "hosts")):
            values = [mean(some, measure) for some in lines.values()]
            axes[row, column].plot(places, values, "o-", color=COLOURS["switch"])
        _log_ms(axes[1, column], places, "l" if of == "alert_ms" else "δ")
    _success(axes[0, 0], runs)
    axes[1, 0].set_ylabel("hosts on average")
    axes[1, 0].set_ylim(bottom=0)
    return figure


def parameters_treatments(runs: list[Run]) -> Figure:
    """How many treatments of each kind, likewise."""
    figure, axes = panels("Treatments in 30 minutes, by the alert l and the time slot δ", 1, 2)
    handles: dict[str, Any] = {}
    for axis, of in zip(axes[0], ("alert_ms", "delta_ms"), strict=True):
        lines = _along(runs, of)
        for (kind, name), colour in zip(_TREATMENTS.items(), SERIES, strict=False):
            counts = [sum(run["treatments"][kind] for run in some) for some in lines.values()]
            each = [count / len(some) for count, some in zip(counts, lines.values(), strict=True)]
            (handles[name],) = axis.plot(list(lines), each, "o-", color=colour)
        _log_ms(axis, list(lines), "l" if of == "alert_ms" else "δ")
    axes[0, 0].set_ylabel("treatments a run")
    legend(figure, handles)
    return figure


def _along(runs: list[Run], of: str) -> dict[float, list[Run]]:
    """Runs by one of the two parameters, with the other one at 100 ms."""
    other = "delta_ms" if of == "alert_ms" else "alert_ms"
    some = [run for run in runs if run[other] == 100.0]
    return {place: found for (place,), found in sorted(by(some, of).items())}


def _log_ms(axis: Axes, places: list[float], of: str) -> None:
    axis.set_xscale("log")
    axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.minorticks_off()
    axis.set_xlabel(f"{of}, ms")


# -- kinds of hosts


def kinds(runs: list[Run]) -> Figure:
    """Success and hosts, by how many hosts are of the other kind, and how fast these are."""
    figure, axes = panels("Hosts of two kinds", 1, 2)
    _by_kind(figure, axes, runs, ("success", "hosts"))
    _success(axes[0, 0], runs)
    axes[0, 1].set_ylabel("hosts on average")
    return figure


def kinds_used(runs: list[Run]) -> Figure:
    """Which hosts are in use, beside those supplied (dashed), and how many treatments it takes."""
    figure, axes = panels("Hosts of two kinds: which are in use, and treatments", 1, 2)
    _by_kind(figure, axes, runs, ("other_share", "events"))
    axes[0, 0].plot([0.2, 0.8], [0.2, 0.8], color=INK, lw=1, ls=(0, (4, 3)))
    axes[0, 0].set_ylabel("hosts of the other kind in use")
    percent(axes[0, 0])
    axes[0, 1].set_ylabel("treatments")
    return figure


def _by_kind(figure: Figure, axes: Any, runs: list[Run], measures: tuple[str, str]) -> None:
    handles: dict[str, Any] = {}
    for ((alpha,), some), colour in zip(by(runs, "alpha").items(), SERIES, strict=False):
        for axis, of in zip(axes[0], measures, strict=True):
            places = by(some, "beta")
            values = [mean(same, of) for same in places.values()]
            (line,) = axis.plot([beta for (beta,) in places], values, "o-", color=colour)
            handles[f"others {alpha:g} times as fast"] = line
            axis.set_xlabel("hosts of the other kind supplied (β)")
    legend(figure, handles)


# -- waves and delays


def waves(runs: list[Run]) -> Figure:
    """Boxes over seeds: higher and shorter waves."""
    places = {
        f"{amplitude // 1000:g} k\n{period_s:g} s": some
        for (amplitude, period_s), some in by(runs, "amplitude", "period_s").items()
    }
    return _switching("Higher and shorter waves", places, "amplitude a second, and period")


def delays(runs: list[Run]) -> Figure:
    """Boxes over seeds: switching that takes longer, on the highest of the waves that were tried."""
    highest = max(run["amplitude"] for run in runs)
    chosen = [run for run in runs if run["amplitude"] == highest]
    places = {f"{delay_ms / 1000:g}": some for (delay_ms,), some in by(chosen, "delay_ms").items()}
    what = f"Switching takes longer, on waves of {highest // 1000:g} k"
    return _switching(what, places, "added delay, s")


def _switching(what: str, places: dict[str, list[Run]], along: str) -> Figure:
    figure, axes = panels(what, 2, 2, sharex=False)
    seconds = {
        label: [run["switching_s"] / max(1, run["events"]) for run in some]
        for label, some in places.items()
    }
    measures: list[tuple[str, list[list[float]]]] = [
        ("success", [[run["success"] for run in some] for some in places.values()]),
        ("hosts on average", [[run["hosts"] for run in some] for some in places.values()]),
        ("treatments", [[run["events"] for run in some] for some in places.values()]),
        ("switching, s a treatment", list(seconds.values())),
    ]
    for axis, (label, groups), colour in zip(axes.flat, measures, SERIES, strict=False):
        boxes(axis, groups, list(places), colour)
        axis.set_ylabel(label)
    _success(axes[0, 0], [run for some in places.values() for run in some])
    for axis in axes[1]:
        axis.set_xlabel(along)
    return figure


# -- an end-to-end bound


def splits(runs: list[Run]) -> Figure:
    """Boxes over seeds: the success of both steps, and end to end."""
    figure, axes = panels("An end-to-end bound of 2 s, split between two steps", 3)
    places = {
        "moving" if split is None else f"{2 * split:g} s, {2 - 2 * split:g} s": some
        for (split,), some in by(runs, "split").items()
    }
    measures: list[tuple[str, list[list[float]]]] = [
        (
            f"step {name}",
            [[run["steps"][name]["success"] for run in some] for some in places.values()],
        )
        for name in ("split", "count")
    ]
    measures.append(("end to end", [[run["success"] for run in some] for some in places.values()]))
    for axis, (label, groups), colour in zip(axes[:, 0], measures, SERIES, strict=False):
        boxes(axis, groups, list(places), colour)
        title(axis, label)
        axis.set_ylabel("success")
        axis.set_ylim(min(0.95, *map(min, groups)) - 0.01, 1.005)
        percent(axis)
    axes[2, 0].set_xlabel("split of the bound: step split, step count")
    return figure


def _success(axis: Axes, runs: list[Run]) -> None:
    axis.set_ylabel("success")
    axis.set_ylim(min(0.95, min(run["success"] for run in runs) - 0.01), 1.005)
    percent(axis)
