"""A channel that is cut into pieces by key, so that several hosts can apply it at the same time.

All rows of a key are in one piece. So pieces touch different entries, and can be applied in any order. Where
user code gets the rows of whole slots in one call, all rows of a slot are in one piece too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Mark
from penstock.operators.operator import Answer, Operator
from penstock.state.arrays import fixed_array
from penstock.state.keys.codec import slots_of
from penstock.wire.messages import ChannelHeader

_FINER = 16
"""Number of groups of keys per slot, if the rows of a slot need not stay together."""
MOST = 512
"""Maximum number of pieces of a channel."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a channel, with all rows of their keys."""

    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def cut(
    operator: Operator, kind: str, batches: Sequence[pa.RecordBatch], pieces: int
) -> list[Piece]:
    """Cut a channel into about this many pieces of similar sizes, the largest first. Rows stay in order
    within a piece."""
    table = operator.table
    groups = table.slots * (_FINER if operator.by_key else 1)
    numbers = [slots_of(keys.hashes, groups) for keys in operator.keys(kind, list(batches))]
    counts = sum((np.bincount(group, minlength=groups) for group in numbers), np.zeros(groups))
    ends = np.cumsum(counts)
    piece_of = (np.maximum(ends - 1, 0) * pieces // max(1, int(ends[-1]))).astype(np.int32)
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(pieces)]
    for batch, group in zip(batches, numbers, strict=True):
        of = piece_of[group]
        order = np.argsort(of, kind="stable")
        ordered, begin = batch.take(fixed_array(order, pa.int64())), 0
        for piece, rows in enumerate(np.bincount(of, minlength=pieces).tolist()):
            if rows:
                parts[piece].append(ordered.slice(begin, rows))
                begin += rows
    made = [Piece(part) for part in parts if part]
    return sorted(made, key=lambda piece: -piece.rows)


@dataclass
class Piecework:
    """One channel that is applied piece by piece. Used under the host's lock."""

    header: ChannelHeader
    kind: str
    waiting: deque[Piece]
    mark: Mark
    """Mark to undo the channel to."""
    answers: list[Answer] = field(default_factory=list)
    failed: BaseException | None = None
    """Error that makes the channel fail: a helper's result could not be put into the table."""
    away: int = 0
    """Number of pieces that other hosts are applying."""
    rows: int = 0
    """Number of rows that this host applied itself."""
    helped_rows: int = 0
    """Number of rows that other hosts applied."""
    busy_s: float = 0.0
    """Seconds that this host took for its rows."""

    @property
    def run(self) -> tuple[int, int]:
        return self.header.epoch, self.header.run
