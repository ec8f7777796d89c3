"""A user's function as a sink, called in the courier with Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import StepError
from penstock.live.sinks.sink import LiveSink, LiveWriter, RowIds

ArrowFunction = Callable[[pa.RecordBatch, RowIds], Any]


@dataclass(frozen=True)
class FunctionSink(LiveSink):
    """Calls a function with each batch and the ids of its rows."""

    function: ArrowFunction

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return FunctionWriter(self.function)


@dataclass(frozen=True)
class FunctionWriter(LiveWriter):
    """Passes batches to the function. Rows count as written when it returns."""

    function: ArrowFunction

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        try:
            self.function(batch, ids)
        except Exception as failed:
            raise StepError(
                f"the sink's function failed: {type(failed).__name__}: {failed}",
                hint="fix the function and start the flow again: it resumes from its checkpoint",
                step="sink",
            ) from failed

    def flush(self, epoch: int) -> None:
        """Do nothing: no rows are buffered."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
