"""What a query of the catalog is, and what its flow is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.flows.flow import Flow
    from penstock_bench.workloads.nexmark.columns import Stream


@dataclass(frozen=True)
class Events:
    """The streams that a query asked for, with the columns that it named."""

    spark: SparkSession
    streams: Mapping[Stream, DataFrame]
    delay: str
    """How far out of order the events' times are."""

    @property
    def person(self) -> DataFrame:
        return self.streams["person"]

    @property
    def auction(self) -> DataFrame:
        return self.streams["auction"]

    @property
    def bid(self) -> DataFrame:
        return self.streams["bid"]


@dataclass(frozen=True)
class Query:
    """A query: the columns that it reads, its flow, and how the flow's end is read."""

    needs: Mapping[Stream, tuple[str, ...]]
    """stream -> columns."""
    flow: Callable[[Events], Flow]
    latest: tuple[str, ...] = ()
    """The key of a flow that gives a key's row anew when it changed: the newest one counts."""
