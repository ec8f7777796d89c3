"""Splitting batches by host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.entry_groups import stable_order
from penstock.plan.epoch import RouteTable
from penstock.state.arrays import fixed_array


def split(
    batch: pa.RecordBatch, slots: npt.NDArray[np.int32], routes: RouteTable
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (host index, rows) for each host that gets rows. Rows keep their order.

    `slots` has the slot of each row.
    """
    if batch.num_rows == 0:
        return
    if len(routes.hosts) == 1:
        yield 0, batch
        return
    owner = routes.owner[slots]
    if (owner == owner[0]).all():
        yield int(owner[0]), batch
        return
    order, bounds = stable_order(owner, len(routes.hosts))
    sorted_batch = batch.take(fixed_array(order, pa.int64()))
    for host in range(len(routes.hosts)):
        begin, end = int(bounds[host]), int(bounds[host + 1])
        if end > begin:
            yield host, sorted_batch.slice(begin, end - begin)
