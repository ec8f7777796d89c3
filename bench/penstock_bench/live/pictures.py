"""The pictures of `penstock bench live`: latency of each side by rate, and what a move and kills cost."""

from __future__ import annotations

from functools import partial

from penstock_bench.charts import Line, Panel, Picture, Pictures
from penstock_bench.report import Result
from penstock_bench.style import BLUE, GREEN, GREY, ORANGE, PINK, RED

_COLOURS = {
    "penstock_live": BLUE,
    "penstock_micro": GREEN,
    "native": RED,
    "bytewax": ORANGE,
    "pathway": PINK,
}
_NAMES = {
    "move": "half of all slots move",
    "kill_courier": "a courier is killed",
    "kill_host": "a host is killed",
}
_BIN_S = 0.1


def pictures(report: Result) -> Pictures:
    return {"live-latency": partial(_latency, report), "live-changes": partial(_changes, report)}


def _latency(report: Result) -> Picture:
    """One panel for the median, one for the 99th percentile."""
    panels = []
    for figure, words in (("p50_ms", "median"), ("p99_ms", "99th percentile")):
        lines = []
        for side, facts in report["results"]["sides"].items():
            rates = sorted(facts["rates"], key=int)
            values = [facts["rates"][rate][figure] for rate in rates]
            name = side.replace("_", " ")
            how = {"marker": "o"}
            lines.append(Line([int(r) for r in rates], values, name, _COLOURS[side], how=how))
        panels.append(
            Panel(lines, x="rows a second", y=f"{words}, ms", log="xy", note="produce to receipt")
        )
    return Picture("From one Kafka topic to another, by side", panels)


def _changes(report: Result) -> Picture:
    """Latency around a move and two kills, in bins of 100 ms."""
    panels = []
    for change, words in _NAMES.items():
        told = report["results"]["changes"][change]
        before, after = told["before_ms"], told["after_ms"]
        places = [(n - len(before) + 0.5) * _BIN_S for n in range(len(before) + len(after))]
        panels.append(
            Panel(
                [Line(places, [*before, *after], "", BLUE), Line([0, 0], [1, 1000], "", GREY)],
                x="seconds since then, by when rows were produced",
                y="p99 of 100 ms, ms",
                note=words,
                log="y",
            )
        )
    return Picture("10,000 rows a second through changes", panels)
