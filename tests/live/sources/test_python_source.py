"""Python data sources of Spark in a courier: ranges, positions inside ranges, commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

import penstock as ps
from penstock.errors import FlowError
from penstock.live.sources.python_source import PythonSource
from penstock.live.sources.source import LiveReader

END = 100


class CountingReader(DataSourceStreamReader):
    committed: ClassVar[list[Any]] = []

    def __init__(self, step: int, arrow: bool) -> None:
        self._step, self._arrow = step, arrow

    def initialOffset(self) -> dict:  # noqa: N802
        return {"n": 0}

    def latestOffset(self, start: dict, limit: Any) -> dict:  # noqa: N802
        return {"n": min(END, start["n"] + self._step)}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        middle = (start["n"] + end["n"]) // 2
        return [InputPartition(range(start["n"], middle)), InputPartition(range(middle, end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if self._arrow:
            numbers = list(partition.value)
            yield pa.record_batch(
                {"word": [f"w{n}" for n in numbers], "n": pa.array(numbers, pa.int32())}
            )
        else:
            yield from ((n, f"w{n}") for n in partition.value)

    def commit(self, end: dict) -> None:
        self.committed.append(end)


class OldReader(CountingReader):
    def latestOffset(self) -> dict:  # type: ignore[override]  # noqa: N802
        return {"n": END}


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict:  # noqa: N802
        return {"n": 0}

    def read(self, start: dict) -> tuple[Iterator[tuple], dict]:
        end = {"n": min(END, start["n"] + 30)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict, end: dict) -> Iterator[tuple]:  # noqa: N802
        return iter([(n, f"w{n}") for n in range(start["n"], end["n"])])


class Counting(DataSource):
    def schema(self) -> str:
        return "n long, word string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        kind = OldReader if "old" in self.options else CountingReader
        return kind(int(self.options["step"]), "arrow" in self.options)


class Simple(DataSource):
    def schema(self) -> str:
        return "n long, word string"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return SimpleReader()


SOURCES = [
    ps.source(Counting, step=30),
    ps.source(Counting, step=30, arrow=True),
    ps.source(Counting, step=30, old=True),
    ps.source(Simple),
]


def numbers(reader: LiveReader, most: int) -> list[tuple[list[int], Any]]:
    result = []
    while polled := reader.poll(0, most):
        (rows,) = polled
        assert rows.batch.column("word").to_pylist() == [
            f"w{n}" for n in rows.batch["n"].to_pylist()
        ]
        result.append((rows.batch.column("n").to_pylist(), rows.position))
    return result


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("most", [7, 1000])
def test_reading_can_resume_from_every_position(source: PythonSource, most: int) -> None:
    polls = numbers(source.reader(source.first(source.partitions())), most)
    assert [n for some, _ in polls for n in some] == list(range(END))
    for number, (_, position) in enumerate(polls):
        rest = numbers(source.reader({"0": position}), 11)
        assert [n for some, _ in rest for n in some] == [
            n for some, _ in polls[number + 1 :] for n in some
        ]


def test_a_commit_tells_the_source_once() -> None:
    CountingReader.committed.clear()
    source = ps.source(Counting, step=60)
    reader = source.reader(source.first(["0"]))
    for _ in range(3):
        (polled,) = reader.poll(0, 40)
        reader.commit({"0": polled.position})
    reader.close()
    assert CountingReader.committed == [{"n": 0}, {"n": 60}]


def test_a_source_that_returns_fewer_rows_than_before_is_refused() -> None:
    source = ps.source(Simple)
    with pytest.raises(FlowError, match="fewer rows"):
        source.reader({"0": {"from": {"n": 0}, "to": {"n": 10}, "rows": 11}})


def test_a_source_without_a_stream_reader_is_refused() -> None:
    class Batch(DataSource):
        def schema(self) -> str:
            return "n long"

    with pytest.raises(FlowError, match="no stream reader"):
        ps.source(Batch)
