"""A user's function as a sink: it gets Arrow batches, in the courier."""

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
    """What the function took has left."""

    function: ArrowFunction

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        try:
            self.function(batch, ids)
        except Exception as failed:
            raise StepError(
                f"the function of the sink failed: {type(failed).__name__}: {failed}",
                hint="mend it; the flow goes on from its checkpoint when it is started again",
                step="sink",
            ) from failed

    def flush(self, epoch: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""
