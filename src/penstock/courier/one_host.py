"""The courier's conversation with a host that runs all steps: rows go in, the flow's output comes out."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.courier.exchange import Task, endpoint
from penstock.faults import point
from penstock.operators.operator import ROWS
from penstock.plan.epoch import EpochPlan
from penstock.wire.chain import Aside, ChainHeader
from penstock.wire.messages import CLOSE


def through_one_host(
    plan: EpochPlan, task: Task, batches: Iterable[pa.RecordBatch], keep_late: bool, timeout_ms: int
) -> tuple[list[pa.RecordBatch], Aside]:
    """Take all batches of a task to the host; give back what came out, and what did not go on."""
    header = ChainHeader.of(plan, task.partition, task.attempt, keep_late)
    where = header.steps[0].where
    (location,) = plan.steps[0].endpoints
    with endpoint(location, plan.token).exchange(header.to_bytes(), timeout_ms) as streams:
        writer, reader = streams
        begun = False
        for batch in batches:
            if not begun:
                writer.begin(batch.schema)
                begun = True
            writer.write_batch(batch)
        point("courier.sent", **where)
        writer.write_metadata(CLOSE + ROWS.encode())
        writer.done_writing()
        given, aside = [], Aside()
        for chunk in reader:
            if chunk.data is not None and chunk.data.num_rows:
                given.append(chunk.data)
            if chunk.app_metadata is not None:
                aside = Aside.from_bytes(chunk.app_metadata.to_pybytes())
        point("courier.closed", **where)
    return given, aside
