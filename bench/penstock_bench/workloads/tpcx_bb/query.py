"""What a query of the catalog is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.flows.flow import Flow
    from penstock_bench.workloads.tpcx_bb.columns import Stream

Kind = Literal["stateless", "keyed", "global"]

SLOTS = 16
"""Of steps whose processor is called once for each slot: few, so that a call has many rows."""


@dataclass(frozen=True)
class TpcxBbQuery:
    """A query: the stream that it reads, the steps it puts behind it, and how their end is read."""

    stream: Stream
    steps: Callable[[Flow], Flow]
    """Puts the query's steps behind a flow of the stream; they follow one another."""
    shape: tuple[Kind, ...]
    """The kinds of the steps."""
    order: tuple[tuple[str, Literal["ascending", "descending"]], ...]
    """How the rows of the answer are sorted, which leaves nothing open."""
    newest: Callable[[pa.Table], pa.Table] | None = None
    """For a flow that gives its row anew when it changed: the one that counts."""
