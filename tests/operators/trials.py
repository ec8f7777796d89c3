"""Runs of a step through epochs, as couriers and hosts do it, with mishaps on the way.

A trial is data: epochs with channels of rows, and a mishap for each epoch. The answers must be the same
whatever the mishap.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from penstock.operators.operator import EpochTime, Operator, RowSender, StepPlan
from penstock.state.store.merging import newest
from penstock.state.table.parted import StepTable
from penstock.testing import Uncombined

Row = dict[str, Any]
Mishap = Literal["", "rollback", "failure", "exported", "deltas", "evicted"]
Stages = Literal["none", "some", "all"]
MISHAPS: list[Mishap] = ["", "rollback", "failure", "exported", "deltas", "evicted"]


@dataclass
class Epoch:
    """Rows of each channel, the times, and a mishap."""

    channels: list[list[Any]]
    watermark_ms: int | None = None
    now_ms: int = 0
    final: bool = False
    mishap: Mishap = ""


@dataclass
class Outcome:
    """The output of a run, epoch by epoch."""

    rows: list[list[Row]] = field(default_factory=list)
    late: list[list[Row]] = field(default_factory=list)
    operator: Operator | None = None

    @property
    def all(self) -> list[Row]:
        return [row for epoch in self.rows for row in epoch]


def epochs_of(rows: st.SearchStrategy[Row], most: int = 4) -> st.SearchStrategy[list[Epoch]]:
    """Epochs without watermarks."""
    channels = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3)
    epoch = st.builds(Epoch, channels, mishap=st.sampled_from(MISHAPS))
    return st.lists(epoch, min_size=1, max_size=most)


def run(
    plan: StepPlan,
    epochs: list[Epoch],
    cut: int = 3,
    raw: bool = False,
    two_stage: Stages = "none",
    combines: bool = True,
) -> Outcome:
    """Run all epochs; rows of a channel come in batches of `cut` rows.

    With `raw`, every second channel brings plain rows, whatever the plan's sender would do. `two_stage` is
    used for all channels, for every second one ("some"), or for none. Without `combines`, the other channels
    bring one record per row.
    """
    operator, outcome = plan.operator(8, "step", "fail"), Outcome()
    deltas: list[pa.Table] = []
    for number, epoch in enumerate(epochs):
        if epoch.mishap == "exported":
            operator = _moved(plan, _everything(operator.table))
        if epoch.mishap == "deltas" and deltas:
            whole = newest(deltas[::-1], operator.table.schema, operator.table.codec)
            operator = _moved(plan, whole)
        if epoch.mishap == "evicted":
            whole = _everything(operator.table)
            operator.table.evict(0)
            operator.table.install(operator.table.codec.from_storage(whole["__key"]), whole)
        time = EpochTime(number, epoch.now_ms, epoch.watermark_ms, epoch.final)
        channels, late = _sent(plan, epoch, time, cut, raw, two_stage, combines)
        if epoch.mishap == "rollback":
            operator.open(time)
            for kind, batches in channels[: len(channels) // 2 + 1]:
                operator.apply(kind, batches)
            if number % 2:
                operator.close()
            operator.rollback()
        outcome.rows.append(_answers(operator, channels, time, epoch.mishap == "failure"))
        outcome.late.append(late)
        deltas.append(operator.table.delta())
        operator.table.seal()
    outcome.operator = operator
    return outcome


def net(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """The net result of a change stream: how often each row is there."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        rest = tuple(
            (name, _plain(value)) for name, value in sorted(row.items()) if name != "_change"
        )
        counts[rest] += row["_change"]
    assert all(count >= 0 for count in counts.values())
    return +counts


def bag(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset, without their order."""
    return Counter(
        tuple((name, _plain(value)) for name, value in sorted(row.items())) for row in rows
    )


def _plain(value: Any) -> Any:
    return "nan" if isinstance(value, float) and value != value else value


def _sent(
    plan: StepPlan,
    epoch: Epoch,
    time: EpochTime,
    cut: int,
    raw: bool,
    two_stage: Stages,
    combines: bool,
) -> tuple[list[tuple[str, list[pa.RecordBatch]]], list[Row]]:
    channels, late = [], []
    for number, rows in enumerate(epoch.channels):
        stages = two_stage == "all" or (two_stage == "some" and number % 2 == 0)
        sender = plan.sender(time, stages)
        if not (combines or stages):
            Uncombined()({"sender": sender})
        if raw and number % 2:
            sender = RowSender(plan.codec)
        sent = []
        for start in range(0, len(rows), cut):
            batch = pa.RecordBatch.from_pylist(rows[start : start + cut], plan.inputs[0])
            unfit = plan.unfit(0, batch)
            if unfit is not None:
                batch = batch.filter(pa.array(~unfit.rows))
            sent += list(sender.add(0, batch))
        kind, rest = sender.finish()
        sent += list(rest)
        for batch, hashes in sent:
            batch.validate(full=True)
            assert len(hashes) == batch.num_rows
        channels.append((kind, [batch for batch, _ in sent]))
        late += [row for _, batch in sender.late for row in batch.to_pylist()]
    return channels, late


def _answers(
    operator: Operator,
    channels: list[tuple[str, list[pa.RecordBatch]]],
    time: EpochTime,
    failure: bool,
) -> list[Row]:
    answers = [operator.open(time)]
    for kind, batches in channels:
        if failure and batches:
            broken: Any = None
            with pytest.raises((AttributeError, TypeError)):
                operator.apply(kind, [*batches, broken])
        operator.keys(kind, batches)
        answers.append(operator.apply(kind, batches))
    answers.append(operator.close())
    rows = []
    for answer in answers:
        for batch in answer.batches:
            batch.validate(full=True)
            assert batch.schema.equals(operator.output)
            rows += batch.to_pylist()
    return rows


def _everything(table: StepTable) -> pa.Table:
    return table.export(table.entries_in(np.arange(table.slots)))


def _moved(plan: StepPlan, whole: pa.Table) -> Operator:
    other = plan.operator(8, "step", "fail")
    other.table.load(whole)
    return other
