"""Charts of `penstock bench live`, for the parts in a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock_bench.charts import Bars, Bound, Line, Panel, Picture, Pictures, Shade, Text
from penstock_bench.live.parts.burst import SIDES as BURST_SIDES
from penstock_bench.live.parts.migration import STRATEGIES
from penstock_bench.report import Result, having
from penstock_bench.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SERIES, SKY

_COLOURS = {
    "penstock_live": BLUE,
    "penstock_micro": GREEN,
    "native": RED,
    "bytewax": ORANGE,
    "pathway": PINK,
}
_STRATEGY_COLOURS = dict(zip(STRATEGIES, (ORANGE, GREEN, PINK, RED, BLUE, SKY), strict=True))
_NAMES = {
    "move": "half of all slots move",
    "kill_courier": "a courier is killed",
    "kill_host": "a host is killed",
}
_BIN_S = 0.1


def pictures(report: Result) -> Pictures:
    """The charts of each part that was run."""
    charts: Pictures = {}
    for part, drawings in _OF_PARTS.items():
        results = report["results"].get(part)
        if results is not None:
            charts |= {f"live-{name}": partial(draw, results) for name, draw in drawings.items()}
    return charts


# -- the part `latency`


def _latency(results: Result) -> Picture:
    """One panel for the median, one for the 99th percentile."""
    panels = []
    for figure, words in (("p50_ms", "median"), ("p99_ms", "99th percentile")):
        lines = []
        for side, facts in results["sides"].items():
            rates = sorted(facts["rates"], key=int)
            values = [facts["rates"][rate][figure] for rate in rates]
            name = side.replace("_", " ")
            how = {"marker": "o"}
            lines.append(Line([int(r) for r in rates], values, name, _COLOURS[side], how=how))
        panels.append(
            Panel(lines, x="rows/s", y=f"{words}, ms", log="xy", note="produce to receipt")
        )
    return Picture("From one Kafka topic to another, by side", panels)


def _changes(results: Result) -> Picture:
    """Latency around a move and two kills, in bins of 100 ms."""
    panels = []
    for change, words in _NAMES.items():
        places, values = _around(results["changes"][change])
        panels.append(
            Panel(
                [Line(places, values, "", BLUE), Line([0, 0], [1, 1000], "", GREY)],
                x="produce time, seconds from the change",
                y="p99 of 100 ms, ms",
                note=words,
                log="y",
            )
        )
    return Picture("10,000 rows/s during changes", panels)


def _around(change: Result) -> tuple[list[float], list[float | None]]:
    """Times in seconds from a change, and the p99 of each 100 ms."""
    before, after = change["before_ms"], change["after_ms"]
    places = [(n - len(before) + 0.5) * _BIN_S for n in range(len(before) + len(after))]
    return places, [*before, *after]


# -- the papers' experiments


def _moves(results: Result) -> Picture:
    """One panel per state size, one line per strategy."""
    panels = []
    for size in dict.fromkeys(one["size"] for one in results["moves"]):
        lines = [
            Line(*_around(one), one["strategy"], _STRATEGY_COLOURS[one["strategy"]])
            for one in having(results["moves"], size=size)
        ]
        panels.append(
            Panel(
                [*lines, Bound(0, "the move is requested", upright=True)],
                x="arrival, seconds from the move",
                y="p99 of 100 ms, ms",
                title=f"{size[:-2]} {size[-2:].upper()} of state",
                log="y",
            )
        )
    return Picture("Half of the state moves to a new host, live", panels, share_x=False)


def _switched(results: Result) -> Picture:
    """Latency, load and hosts over time, for each run."""
    panels = []
    for one in results["runs"]:
        series, sla = one["by_second"], one["settings"]["sla"]
        places = [second + 0.5 for second in range(len(series["rate"]))]
        possible = "" if one["possible"] is None else f", {one['possible']:.1%} is possible"
        panels += [
            Panel(
                [
                    Line(places, series["mean_ms"], "mean", BLUE),
                    Line(places, series["p99_ms"], "99th percentile", SKY),
                    Bound(sla["latency_ms"], "bound of the mean"),
                ],
                x="seconds",
                y="arrival to sink, ms",
                title=one["name"],
                note=f"success {one['success']:.1%}{possible}",
                log="y",
            ),
            Panel(
                [
                    Line(places, series["rate"], "arrivals", GREY),
                    Line(
                        places,
                        [None if n is None else n * _pace(one) for n in series["hosts"]],
                        "capacity of the hosts, all steps",
                        ORANGE,
                        steps=True,
                    ),
                ],
                x="seconds",
                y="records/s",
                note=f"{one['hosts']:.1f} hosts on average",
                y_from=0,
            ),
        ]
    return Picture("An SLA kept by the switch, live", panels, columns=2, share_x=False)


def _pace(one: Result) -> float:
    """Records per second that a host contributes to the flow's capacity, averaged over the steps."""
    paces = one["settings"]["paces"].values()
    return float(sum(paces) / len(paces) / len(paces))


def _hotspots(results: Result) -> Picture:
    """Rows per second of each host, for each run."""
    panels = []
    for one in results["runs"]:
        period, hosts = one["settings"]["period_s"], one["rows_by_host"]
        marks = [
            Line([s + 0.5 for s in range(len(rows))], rows, host, SERIES[number % len(SERIES)])
            for number, (host, rows) in enumerate(hosts.items())
        ]
        moves = range(period, one["settings"]["seconds"], period)
        panels.append(
            Panel(
                [*marks, *(Bound(at, "the hotspot moves", upright=True) for at in moves)],
                x="seconds",
                y="rows/s",
                title=one["name"],
                note=f"busiest host over mean: {', '.join(map(str, one['max_over_mean']))}",
                y_from=0,
            )
        )
    return Picture("Moving hotspots, live: rows of each host", panels, share_x=False)


def _bursts(results: Result) -> Picture:
    """Latency of both sides over time, for each size of burst."""
    settings = results["run"]["settings"]
    colours = dict(zip(BURST_SIDES, (BLUE, GREEN), strict=True))
    panels = []
    for factor in dict.fromkeys(one["factor"] for one in results["runs"]):
        lines = [
            Line(
                [second + 0.5 for second in range(len(one["p99_by_second"]))],
                one["p99_by_second"],
                one["side"],
                colours[one["side"]],
            )
            for one in having(results["runs"], factor=factor)
        ]
        burst = Shade(settings["at_s"], settings["at_s"] + settings["for_s"], "burst")
        panels.append(
            Panel(
                [burst, *lines],
                x="arrival, seconds",
                y="p99 of each second, ms",
                title=f"{factor} times the load",
                log="y",
            )
        )
    return Picture("Bursts, live", panels, share_x=False)


def _sla(results: Result) -> Picture:
    """Latency at a steady load and during a move, in bins of 100 ms."""
    bound = results["run"]["settings"]["sla"]["latency_ms"]
    panels = []
    for name, words in (("steady", "a steady load"), ("through_move", "half of all slots move")):
        values = results[name]["by_100ms"]
        marks = [
            Line([(n + 0.5) * _BIN_S for n in range(len(values))], values, "p99 of 100 ms", BLUE),
            Bound(bound, "bound of the average"),
        ]
        if name == "through_move":
            marks.append(Bound(results["moved_at_s"], "the move", upright=True))
        panels.append(
            Panel(
                marks,
                x="produce time, seconds",
                y="produce to receipt, ms",
                title=words,
                note=f"kept in {results[name]['success']:.2%} of windows",
                log="y",
            )
        )
    return Picture("An SLA of 50 ms over any second, live", panels, share_x=False)


def _ordered(results: Result) -> Picture:
    """Throughput and latency of ordered and unordered chains, by number of hosts."""
    hosts = sorted({one["hosts"] for one in results["chains"]})
    panels = []
    for figure, words in (("rows_per_s", "highest rows/s"), ("p99_ms", "p99, ms")):
        marks: list[Bars | Text] = []
        for shift, ordered in ((-0.2, False), (0.2, True)):
            some = [having(results["chains"], hosts=n, ordered=ordered)[0] for n in hosts]
            name, colour = ("ordered", BLUE) if ordered else ("unordered", GREY)
            values = [one[figure] for one in some]
            marks.append(Bars([n + shift for n in range(len(hosts))], values, 0.4, colour, name))
            marks += [
                Text(f"{value:,.0f}", (n + shift, value), (0, 3), "center")
                for n, value in enumerate(values)
            ]
        panels.append(
            Panel(marks, y=words, names=[f"{n} host{'s' * (n > 1)}" for n in hosts], y_from=0)
        )
    title = "A chain of two steps, ordered and unordered, live"
    return Picture(title, panels, columns=2, share_x=False)


_OF_PARTS: dict[str, dict[str, Callable[[Result], Picture]]] = {
    "latency": {"latency": _latency, "changes": _changes},
    "migration": {"migration": _moves},
    "sla": {"sla": _sla},
    "switch": {"switch": _switched},
    "hotspots": {"hotspots": _hotspots},
    "burst": {"burst": _bursts},
    "ordered": {"ordered": _ordered},
}
