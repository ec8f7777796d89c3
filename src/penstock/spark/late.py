"""Where rows go that came behind the watermark of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import SettingError
from penstock.plan.steps import FlowPlan
from penstock.spark.sinks import Sink


def late_sinks(plan: FlowPlan, sinks: Sink | dict[str, Sink] | None) -> dict[tuple[str, int], Sink]:
    """(step, input) -> the sink of its late rows, from what a user gave: by "window-1", "join-2.right"."""
    if sinks is None:
        return {}
    places: dict[str, tuple[str, int]] = {}
    for step in plan.keyed:
        sides = (".left", ".right") if len(step.plan.inputs) == 2 else ("",)
        places |= {step.id + side: (step.id, number) for number, side in enumerate(sides)}
    if not isinstance(sinks, dict):
        if len(places) > 1:
            raise SettingError(
                f"late_rows is one sink, but rows can be late for {', '.join(places)}",
                hint=f'give a sink for each that matters: late_rows={{"{next(iter(places))}": ...}}',
            )
        sinks = dict.fromkeys(places, sinks)
    if unknown := set(sinks) - set(places):
        raise SettingError(
            f"late_rows names unknown steps {sorted(unknown)}",
            hint=f"rows can be late for {', '.join(places)} (see flow.explain())",
        )
    return {places[name]: sink for name, sink in sinks.items()}


@dataclass(frozen=True)
class LateWriter:
    """Gives an epoch's late rows to their sinks, before the epoch is durable: so they come once."""

    spark: SparkSession
    sinks: Mapping[tuple[str, int], Sink]
    flow_id: str

    def __call__(self, epoch: int, rows: dict[tuple[str, int], pa.Table]) -> None:
        for place, table in rows.items():
            sink = self.sinks.get(place)
            if sink is not None:
                sink.write(self.spark.createDataFrame(table), epoch, self.flow_id)
