"""The chart of `penstock bench soak`: all samples over time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock_bench.charts import Line, Panel, Picture, Pictures
from penstock_bench.report import Result
from penstock_bench.soak.samples import ROLES
from penstock_bench.style import BLUE, GREEN, GREY, ORANGE, RED

_COLOURS = dict(zip(ROLES, (BLUE, RED, GREEN, ORANGE), strict=True))
_NAMES = {
    "driver": "driver",
    "jvm": "Spark's JVM",
    "host": "a host, on average",
    "workers": "all other workers",
}


def pictures(report: Result) -> Pictures:
    return {"soak": partial(_picture, report)}


def _picture(report: Result) -> Picture:
    samples, ratios = report["results"]["samples"], report["ratios"]
    minutes = [sample["at_s"] / 60 for sample in samples]

    def panel(y: str, marks: list[Line], *of: str) -> Panel:
        note = ", ".join(f"{name.replace('_', ' ')} {ratios[name]:.3f}" for name in of)
        return Panel(marks, x="minutes into the run", y=y, note=note, y_from=0, y_to=None)

    def by_role(metric: str) -> list[Line]:
        return [
            Line(minutes, [s["roles"][role][metric] for s in samples], _NAMES[role], _COLOURS[role])
            for role in ROLES
        ]

    def line(value: Callable[[Any], float | None], name: str, colour: str) -> Line:
        return Line(minutes, [value(sample) for sample in samples], name, colour)

    heap = line(lambda s: s["heap_mb"], "on the JVM's heap", GREY)
    return Picture(
        f"A query that runs for {report['settings']['minutes']:g} minutes",
        [
            panel("memory, MB", [*by_role("memory_mb"), heap], "memory_growth", "heap_growth"),
            panel("descriptors", by_role("descriptors"), "descriptors_growth"),
            panel("threads", by_role("threads"), "threads_growth"),
            panel(
                "checkpoint, MB",
                [line(lambda s: s["checkpoint"]["mb"], "checkpoint", BLUE)],
                "checkpoint_growth",
            ),
            panel(
                "files of the checkpoint",
                [line(lambda s: s["checkpoint"]["number"], "checkpoint", BLUE)],
                "files_growth",
            ),
            panel("entries in the sink's folder", [line(lambda s: s["sink_entries"], "sink", RED)]),
            panel("hosts", [line(lambda s: s["hosts"], "hosts", GREEN)]),
            panel("p99 of the newest epoch, ms", [line(lambda s: s["p99_ms"], "latency", GREY)]),
        ],
        columns=2,
        share_x=True,
    )
