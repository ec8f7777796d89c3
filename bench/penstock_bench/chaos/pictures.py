"""Charts of `penstock bench chaos`: latency during faults, and recovery by kind of fault."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from functools import partial

from penstock_bench.charts import Bound, Line, Panel, Picture, Pictures
from penstock_bench.report import Result, by
from penstock_bench.style import BLUE, GREY, INK, RED

_DOTS = {"marker": "o", "ls": "", "ms": 3.5, "alpha": 0.5}
_BARS = {"marker": "|", "ls": "", "ms": 14, "mew": 2}
_GOAL_S = 5.0


def pictures(report: Result) -> Pictures:
    name = "chaos-cluster" if "cluster" in report["settings"]["allows"] else "chaos"
    charts: Pictures = {f"{name}-latency": partial(_latency, report)}
    if any(kind["happened"] for kind in report["results"]["kinds"]):
        charts[f"{name}-recovery"] = partial(_recovery, report)
    return charts


def _latency(report: Result) -> Picture:
    results, settings = report["results"], report["settings"]
    by_second = results["by_second"]
    seconds = [second + 0.5 for second in range(len(by_second["p99_ms"]))]
    counts = [0] * len(seconds)
    for fault in results["faults"]:
        if fault["happened_s"] is not None and 0 <= fault["happened_s"] < len(counts):
            counts[int(fault["happened_s"])] += 1
    totals = [sum(counts[: second + 1]) for second in range(len(counts))]
    x = "seconds into the load"
    return Picture(
        f"Latency during faults, seed {settings['seed']}",
        [
            Panel(
                [
                    Line(seconds, by_second["p99_ms"], "99th percentile", RED),
                    Line(seconds, by_second["mean_ms"], "mean", BLUE),
                    Bound(1000, "the SLA"),
                ],
                x=x,
                y="arrival to sink, ms",
                note=f"{report['ratios']['success_during_faults']:.1%} of windows within the SLA",
                log="y",
            ),
            Panel([Line(seconds, by_second["rate"], "", GREY)], x=x, y="rows/s", y_from=0),
            Panel([Line(seconds, [float(n) for n in totals], "", INK)], x=x, y="faults so far"),
        ],
    )


def _recovery(report: Result) -> Picture:
    """One dot per fault, one row per group. Faults without a recovery are left out."""
    recovered = by(
        (f for f in report["results"]["faults"] if f["recovered_s"] is not None), "group"
    )
    groups = sorted(recovered, key=lambda group: statistics.median(_times(recovered[group])))
    chance, dots = random.Random(1), list[tuple[float, float]]()
    for row, group in enumerate(groups):
        dots += [(took_s, row + chance.uniform(-0.25, 0.25)) for took_s in _times(recovered[group])]
    medians = [statistics.median(_times(recovered[group])) for group in groups]
    panel = Panel(
        [
            Line([s for s, _ in dots], [row for _, row in dots], "one fault", BLUE, how=_DOTS),
            Line(medians, list(range(len(groups))), "median", INK, how=_BARS),
            Bound(_GOAL_S, f"{_GOAL_S:g} s", upright=True),
        ],
        x="seconds from the fault until an epoch that began after it is done",
        note=f"p99 {report['ratios']['recover_p99_s']:.1f} s",
        log="x",
        x_from=min([0.1, *(took_s for took_s, _ in dots)]),
        x_to=1.2 * max([_GOAL_S, *(took_s for took_s, _ in dots)]),
        y_from=len(groups) - 0.5,
        y_to=-0.5,
        y_names=[f"{group} ({len(recovered[group,])})" for (group,) in groups],
    )
    return Picture("Recovery, by kind of fault", [panel])


def _times(faults: Sequence[Result]) -> list[float]:
    return [fault["recovered_s"] for fault in faults]
