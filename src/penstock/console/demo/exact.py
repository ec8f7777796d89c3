"""Is the demo's output exact? The sink's totals beside what numpy makes of the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame

from penstock.console.demo.steady import Numbers, keys_and_values

_CHUNK = 1 << 20


class Totals:
    """A sink that keeps the newest row of each key. An epoch that comes again changes nothing."""

    def __init__(self, keys: int) -> None:
        self.sums: Numbers = np.zeros(keys, np.int64)
        self.counts: Numbers = np.zeros(keys, np.int64)
        self.epoch = -1
        """The newest epoch taken."""

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        rows = df.toArrow()
        k, total, n = (rows.column(name).to_numpy() for name in ("k", "total", "n"))
        self.sums[k], self.counts[k] = total, n
        self.epoch = epoch

    def faults(self, rows: int) -> str:
        """What is wrong, if these should be the totals of the first `rows` rows; empty if fine.

        >>> totals = Totals(keys=2)
        >>> totals.faults(rows=0), totals.faults(rows=3)
        ('', '2 of 2 keys are wrong; 0 rows were counted, 3 came')
        """
        keys = len(self.sums)
        sums, counts = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        for start in range(0, rows, _CHUNK):
            k, v = keys_and_values(np.arange(start, min(start + _CHUNK, rows)), keys)
            np.add.at(sums, k, v)
            counts += np.bincount(k, minlength=keys)
        wrong = int(np.count_nonzero((sums != self.sums) | (counts != self.counts)))
        if wrong == 0:
            return ""
        counted = int(self.counts.sum())
        return f"{wrong:,} of {keys:,} keys are wrong; {counted:,} rows were counted, {rows:,} came"


def rows_taken(checkpoint: Path, epoch: int) -> int:
    """How many rows Spark's own log says the source has given, up to the end of an epoch."""
    if epoch < 0:
        return 0
    offset = (checkpoint / "offsets" / str(epoch)).read_text().splitlines()[-1]
    return int(json.loads(offset)["row"])
