"""A Spark StatefulProcessor, ported by renaming its methods, has the same output.

The source below runs unchanged in Spark's tester, and in Penstock's with names in snake case instead of camel
case.
"""

from __future__ import annotations

import re
from typing import Any, cast

from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

from penstock.operators.process.processor import KeyedProcessor
from penstock.state.variables.values import Row
from penstock.testing import ProcessorTester

SOURCE = """
class Heartbeats(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.beats = handle.getValueState("beats", "n int, level double")
        self.levels = handle.getListState("levels", "level double")
        self.modes = handle.getMapState("modes", "mode string", "n int")

    def handleInputRows(self, key, rows, timerValues):
        n, level = self.beats.get() if self.beats.exists() else (0, None)
        for row in rows:
            n, level = n + 1, row.level
            self.levels.appendValue((level,))
            seen = self.modes.getValue((row["mode"],)) if self.modes.containsKey((row.mode,)) else (0,)
            self.modes.updateValue((row.mode,), (seen[0] + 1,))
        self.beats.update((n, level))
        if n >= 4:
            self.levels.put(list(self.levels.get())[-2:])
            self.levels.appendList([(0.0,), (0.5,)])
        for expiry in self.handle.listTimers():
            self.handle.deleteTimer(expiry)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1000)
        yield Row(device=key[0], n=n, text=str([level for (level,) in self.levels.get()]))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        modes = sorted((mode[0], n[0]) for mode, n in self.modes.iterator())
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(device=key[0], n=-self.beats.get()[0], text=f"{modes} {late}")
        self.beats.clear()
        self.levels.clear()
        self.modes.removeKey(("fast",))

    def close(self):
        pass
"""


def renamed(source: str) -> str:
    source = re.sub(r"(?<=[a-z])[A-Z](?=[a-z])", lambda match: f"_{match.group().lower()}", source)
    return source.replace("Stateful_processor", "KeyedProcessor")


def made(source: str, **names: Any) -> Any:
    exec(source, names)
    return names["Heartbeats"]()


def test_the_same_source_gives_the_same_rows() -> None:
    theirs = TwsTester(made(SOURCE, StatefulProcessor=StatefulProcessor, Row=SparkRow),
                       timeMode="ProcessingTime")  # fmt: skip
    ours = ProcessorTester(
        made(renamed(SOURCE), KeyedProcessor=KeyedProcessor, Row=Row),
        "device string, mode string, level double",
        key="device",
        output_schema="device string, n int, text string",
    )
    feeds: dict[int, list[tuple[str, str, float]]] = {
        100: [("a", "fast", 1.0), ("b", "slow", 2.0)],
        900: [("a", "slow", 3.0), ("a", "fast", 4.0)],
        1200: [("a", "fast", 5.0)],
        2300: [("c", "fast", 6.0), ("a", "slow", 7.0)],
        9000: [],
    }
    for now, rows in feeds.items():
        expected = [tuple(cast(SparkRow, row)) for row in theirs.setProcessingTime(now)]
        assert sorted(ours.set_time(now)) == sorted(expected)
        expected = []
        for device in dict.fromkeys(row[0] for row in rows):
            spark_rows = [SparkRow(device=d, mode=m, level=v) for d, m, v in rows if d == device]
            expected += [tuple(row) for row in theirs.test(device, spark_rows)]
        assert ours.feed(rows) == expected
        for device in "abc":
            assert ours.peek("beats", device) == theirs.peekValueState("beats", device)
            assert ours.peek("levels", device) == theirs.peekListState("levels", device)
            assert ours.peek("modes", device) == theirs.peekMapState("modes", device)
        ours.restart()
