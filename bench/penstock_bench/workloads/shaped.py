"""Rows of a key and a number that arrive live on Spark, with any rate and skew.

>>> spark = ps.session()                                                      # doctest: +SKIP
>>> rows = shaped(spark, "burst(4000, 5, 30s, 20s)", "hotspot(0.8, 5, 2, 30s)")  # doctest: +SKIP
>>> flow = ps.flow(rows, arrival="arrival").key_by("k", slots=64)             # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import SettingError
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import Shape, shape
from penstock.sim.skews import Skew, skew
from penstock.spark.arriving import Arriving, arriving
from penstock.state.keys.codec import int_keys, slots_of
from penstock_bench.workloads.draws import Draws


@dataclass(frozen=True)
class KeyedRows:
    """Rows of a key `k`, from 0 up, and a number `v`. They depend only on number, seed and arrival time.

    >>> from penstock.sim.skews import Hotspot
    >>> content = KeyedRows(keys=1000, skew=Hotspot(1.0, of=64), slots=64)
    >>> k, v = content.rows(np.arange(3), np.zeros(3, np.int64))
    >>> content.slots_of(k.to_numpy()).tolist(), v.to_pylist()
    ([0, 0, 0], [0, 1, 2])
    """

    keys: int
    skew: Skew
    slots: int = 64
    """Slots of the step that is keyed by `k`, for skews over slots."""
    seed: int = 1

    columns = "k long, v long"

    def __post_init__(self) -> None:
        if self.skew.of_slots:
            empty = np.flatnonzero(np.diff(_keys_by_slot(self.keys, self.slots)[1]) == 0)
            if len(empty):
                raise SettingError(
                    f"{self.keys} keys are too few: slot {empty[0]} of {self.slots} has none",
                    hint=f"use {20 * self.slots} keys or more",
                )

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return [pa.array(self.chosen_keys(number, t_us)), pa.array(number % 1000)]

    def chosen_keys(self, number: Numbers, t_us: Numbers) -> Numbers:
        """Keys of the rows with these numbers and arrival times."""
        draws, t_s = Draws(self.seed, number), t_us / 1e6
        if not self.skew.of_slots:
            return self.skew.chosen(self.keys, draws.unit("key"), t_s)
        slot = self.skew.chosen(self.slots, draws.unit("slot"), t_s)
        keys, starts = _keys_by_slot(self.keys, self.slots)
        first, end = starts[slot], starts[slot + 1]
        return np.asarray(keys[first + draws.below(end - first, "key")], np.int64)

    def slots_of(self, k: Numbers) -> Numbers:
        """The slots of these keys."""
        return np.asarray(slots_of(int_keys(k).hashes, self.slots), np.int64)


@lru_cache(maxsize=8)
def _keys_by_slot(keys: int, slots: int) -> tuple[Numbers, Numbers]:
    """All keys ordered by slot, and the index at which each slot begins, followed by the end."""
    slot = slots_of(int_keys(np.arange(keys, dtype=np.int64)).hashes, slots)
    order = np.argsort(slot, kind="stable")
    return order.astype(np.int64), np.searchsorted(slot[order], np.arange(slots + 1))


def shaped(
    spark: SparkSession,
    rate: str | Shape,
    uneven: str | Skew = "uniform",
    keys: int = 10_000,
    slots: int = 64,
    partitions: int = 2,
    start_ms: int | None = None,
    seed: int = 1,
) -> DataFrame:
    """A stream of (arrival, k, v) with the shape `rate` and the skew `uneven`.

    `slots` is the number of slots of the step that reads the rows. Without `start_ms`, rows begin to
    arrive when the query is up; see `arriving`.
    """
    content = KeyedRows(keys, skew(uneven), slots, seed)
    return arriving(spark, "shaped", Arriving(shape(rate), content, partitions, start_ms))
