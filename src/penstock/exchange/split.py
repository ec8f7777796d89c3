"""Cutting batches by owner: which rows go to which host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from penstock.plan.epoch import RouteTable
from penstock.state.arrays import fixed_array


@njit(cache=True, nogil=True)
def _order_by_owner(
    owner: npt.NDArray[np.int32], hosts: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A stable counting sort: row numbers by owner, and where each owner's begin."""
    bounds = np.zeros(hosts + 1, np.int64)
    for i in range(owner.size):
        bounds[owner[i] + 1] += 1
    for h in range(hosts):
        bounds[h + 1] += bounds[h]
    place = bounds[:hosts].copy()
    order = np.empty(owner.size, np.int64)
    for i in range(owner.size):
        order[place[owner[i]]] = i
        place[owner[i]] += 1
    return order, bounds


def split(
    batch: pa.RecordBatch, slots: npt.NDArray[np.int32], routes: RouteTable
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(host index, its rows) for each host that gets any; order within a host is kept.

    `slots` has the slot of each row.
    """
    if batch.num_rows == 0:
        return
    if len(routes.hosts) == 1:
        yield 0, batch
        return
    owner = routes.owner[slots]
    order, bounds = _order_by_owner(owner, len(routes.hosts))
    sorted_batch = batch.take(fixed_array(order, pa.int64()))
    for host in range(len(routes.hosts)):
        begin, end = int(bounds[host]), int(bounds[host + 1])
        if end > begin:
            yield host, sorted_batch.slice(begin, end - begin)
