"""Processing of rows outside of hosts: functions of stateless steps, senders of keyed steps.

Bad rows fail the step with a clear error, or are set aside as dead letters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError, NullKeyError, StepError, in_step
from penstock.exchange.aside import Aside
from penstock.faults import point
from penstock.model import DeadLetter
from penstock.operators.operator import OnError, Outgoing, Sender
from penstock.plan.steps import KeyedStep, MapStep
from penstock.state.arrays import fixed_array


def row_text(batch: pa.RecordBatch, row: int) -> str:
    """One row as JSON text, for messages and dead letters."""
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=str)


class StepWork:
    """Runs steps on one task's rows, and sets bad and late rows aside.

    With `keep_late`, late rows are kept for a sink. Otherwise they are only counted.
    """

    def __init__(self, on_error: OnError, keep_late: bool, aside: Aside) -> None:
        self._sets_aside = on_error == "dead_letter"
        self._keep_late, self._aside = keep_late, aside

    def fit(
        self, step: KeyedStep, input: int, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a keyed step can process. Bad rows are set aside or raise NullKeyError."""
        return (self._fit(step, input, batch) for batch in batches)

    def _fit(self, step: KeyedStep, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        unfit = step.plan.unfit(input, batch)
        if unfit is None:
            return batch
        rows = unfit.rows.nonzero()[0]
        if not self._sets_aside:
            row = row_text(batch, int(rows[0]))
            raise NullKeyError(
                f"step {step.id}: {len(rows)} row(s) have {unfit.reason}, for example {row}",
                hint="filter them out or fill them in before the step, or start the flow with "
                'on_error="dead_letter" to set them aside',
                step=step.id,
                key="null",
                row=row,
            )
        self._aside.dead.extend(
            DeadLetter(step.id, "null", row_text(batch, int(i)), unfit.reason) for i in rows
        )
        return batch.filter(fixed_array(~unfit.rows, pa.bool_()))

    def send(
        self,
        step: KeyedStep,
        sender: Sender,
        inputs: Sequence[Iterable[pa.RecordBatch]],
        send: Callable[[Outgoing], None],
    ) -> str:
        """Pass all fit rows through the sender of a keyed step. Returns the kind of batches sent, as
        `finish` does.

        Late rows are set aside.
        """
        with in_step(step.id):
            for number, batches in enumerate(inputs):
                for batch in batches:
                    for outgoing in sender.add(number, batch):
                        send(outgoing)
                    self.late(step, sender.late)
                    sender.late.clear()
            kind, rest = sender.finish()
            for outgoing in rest:
                send(outgoing)
        return kind

    def late(self, step: KeyedStep, rows: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Set aside rows behind the step's watermark, as (input, rows) pairs."""
        self._aside.add_late(step.id, rows, self._keep_late)

    def mapped(self, step: MapStep, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the step's function to all batches. If it fails, batches are halved until the bad row is
        found."""
        for batch in batches:
            began = time.perf_counter()
            made = self._map(step, batch)
            took_s = time.perf_counter() - began
            point("courier.work", step=step.id, records=batch.num_rows, took_s=took_s)
            yield from made

    def _map(self, step: MapStep, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        try:
            return conformed(step, step.function(batch))
        except (FlowError, MemoryError):
            raise  # no row is to blame
        except Exception as failed:
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                parts = (batch.slice(0, half), batch.slice(half))
                return [out for part in parts for out in self._map(step, part)]
            return self._failed_row(step, batch, failed)

    def _failed_row(
        self, step: MapStep, batch: pa.RecordBatch, failed: Exception
    ) -> list[pa.RecordBatch]:
        row = row_text(batch, 0) if batch.num_rows else "(no row: an empty batch)"
        error = f"{type(failed).__name__}: {failed}"
        if self._sets_aside and batch.num_rows:
            self._aside.dead.append(DeadLetter(step.id, "", row, error))
            return []
        raise StepError(
            f"step {step.id}: the function of map_batches failed on row {row}: {error}",
            hint='fix the function, or start the flow with on_error="dead_letter" to set such '
            "rows aside",
            step=step.id,
            row=row,
        ) from failed


def conformed(step: MapStep, result: Any) -> list[pa.RecordBatch]:
    """Convert the return value of a user's function to batches of the step's schema."""
    if result is None:
        return []
    if isinstance(result, pa.Table):
        parts = result.to_batches()
    elif isinstance(result, pa.RecordBatch):
        parts = [result]
    else:
        return [batch for part in result for batch in conformed(step, part)]
    return [as_schema(part, step.output, step.id) for part in parts if part.num_rows]


def as_schema(batch: pa.RecordBatch, schema: pa.Schema, step: str) -> pa.RecordBatch:
    """Convert a batch to exactly this schema. Columns are found by name, and cast where that is safe."""
    if batch.schema.equals(schema):
        return batch
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except (KeyError, pa.ArrowException) as unfit:
        raise FlowError(
            f"step {step}: the function returned {_short(batch.schema)}, which does not fit the "
            f"declared {_short(schema)}: {unfit}",
            hint="return those columns, or declare the schema with map_batches(fn, schema=...)",
        ) from unfit
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _short(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name} {field.type}" for field in schema) + ")"
