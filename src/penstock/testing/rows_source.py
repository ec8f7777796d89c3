"""A source for flows under test. It only has columns; the test passes the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from penstock.errors import FlowError
from penstock.live.sources.source import LiveReader, LiveSource
from penstock.state.variables.ddl import schema_of


@dataclass(frozen=True)
class RowsSource(LiveSource):
    """A source without rows of its own: `FlowTester.run` passes them. Created by `source`."""

    columns: pa.Schema
    name: str | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def partitions(self) -> list[str]:
        self._refuse()

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        self._refuse()

    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise FlowError(
            "a source of penstock.testing has no rows of its own",
            hint="pass rows to FlowTester(flow).run(...), or build the flow on another source",
        )


def source(columns: pa.Schema | str, name: str | None = None) -> RowsSource:
    """A source for flows that a `FlowTester` runs, with these columns: DDL text or an Arrow schema.

    A test of a flow with several sources passes rows by the `name` of each: `tester.run(bids=[...])`.

    >>> import penstock as ps
    >>> ps.flow(source("user string, at timestamp"), event_time="at").schema.names
    ['user', 'at']
    """
    return RowsSource(schema_of(columns), name)
