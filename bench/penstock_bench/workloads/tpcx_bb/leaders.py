"""The first few by number, and what changed among them. Vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.operator import CHANGE
from penstock_bench.workloads.draws import Numbers

Mask = npt.NDArray[np.bool_]


def leading(group: Numbers, n: Numbers, ties: tuple[Numbers, ...], most: int) -> Mask:
    """Which are among the `most` of their group with the largest n; smaller ties come first.

    Those with n = 0 are not there at all.

    >>> leading(np.zeros(3, int), np.array([4, 4, 0]), (np.array([9, 8, 1]),), 1).tolist()
    [False, True, False]
    """
    order = np.lexsort((*reversed(ties), -n, group))
    g = group[order]
    begins = np.ones(len(g), np.bool_)
    begins[1:] = g[1:] != g[:-1]
    place = np.arange(len(g))
    place -= np.maximum.accumulate(np.where(begins, place, 0))
    mask = np.zeros(len(g), np.bool_)
    mask[order] = place < most
    return mask & (n > 0)


def changes(
    columns: dict[str, Numbers], was: Numbers, now: Numbers, led: Mask, leads: Mask
) -> pa.RecordBatch:
    """What is taken back and what is put in where `was` became `now`, and `led` became `leads`.

    >>> one = np.array([True])
    >>> changes({"item": np.array([5])}, np.array([1]), np.array([2]), one, one).to_pylist()
    [{'item': 5, 'n': 1, '_change': -1}, {'item': 5, 'n': 2, '_change': 1}]
    """
    gone = np.flatnonzero(led & ~(leads & (was == now)))
    come = np.flatnonzero(leads & ~(led & (was == now)))
    rows = np.concatenate([gone, come])
    arrays = [pa.array(values[rows]) for values in columns.values()]
    arrays.append(pa.array(np.concatenate([was[gone], now[come]])))
    arrays.append(pa.array(np.repeat(np.array([-1, 1], np.int8), [len(gone), len(come)])))
    return pa.RecordBatch.from_arrays(arrays, [*columns, "n", CHANGE])
