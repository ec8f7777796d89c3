"""Trials of event-time flows: like `tests.trials.trial`, with watermarks, late rows and an end of input."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.driver.progress import EpochProgress
from penstock.operators.operator import CHANGE
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.event_ledger import CASES, DELAY_MS
from tests.trials.plain_rows import Row, net, plain
from tests.trials.trial import Mishap, Trial, Turn

BEFORE_MS = 10_000
"""Milliseconds by which event time starts before processing time, and so before 1970."""
IN_TIME = (DELAY_MS,)
MOSTLY_IN_TIME = (DELAY_MS,) * 6 + (2 * DELAY_MS, 6 * DELAY_MS)
"""Choices of how many milliseconds rows may be behind: some are late for one step or another."""


class EventTrial(Trial):
    """An event-time flow and its model."""

    def __init__(self, name: str, on: MiniCluster, behind: Sequence[int]) -> None:
        self.case = CASES[name]
        self.model = self.case.twin()
        super().__init__(name, on, self.model)  # type: ignore[arg-type]
        self.behind = behind
        self.came: list[Row] = []
        """All rows so far."""
        self.late: Counter[str] = Counter()
        """Step -> number of late rows."""
        self.dead: list[Row] = []
        """All rows without a time."""
        self._watermark: int | None = None

    def rows(self, turn: Turn) -> list[list[Row]]:
        pick = random.Random(turn.seed)
        now_ms = self.cluster.now_ms + turn.gap_ms - BEFORE_MS
        parts: list[list[Row]] = [[] for _ in range(turn.partitions)]
        for row in self.case.rows(pick, turn.rows, now_ms, self.behind):
            parts[pick.randrange(turn.partitions)].append(row)
        return parts

    def expected(self, rows: list[Row], closing: int) -> list[tuple[Any, ...]]:
        twin = self.model
        self.came += rows
        self.dead += [row for row in rows if row.get("ts", 0) is None]
        twin.started_ms = self.cluster.started_ms
        self._watermark = twin.watermarks[self.case.flow.keyed[0].id]
        return twin.epoch(rows, self.cluster.time_ms, closing)

    def compare(self, progress: EpochProgress) -> None:
        assert progress.watermark_ms == self._watermark, "the watermark differs"
        late = self.model.late()
        late_rows = self.cluster.late.get(progress.epoch, {})
        assert {where: plain(rows) for where, rows in late_rows.items()} == late, "late rows"
        counts: Counter[str] = Counter()
        for (step, _), rows in late.items():
            counts[step] += len(rows)
        assert progress.dead_letters == self.model.dead, "the number of dead letters"
        assert progress.late_rows == counts, "the number of late rows"
        self.late += counts

    def check(self, mishaps: tuple[Mishap, ...] = ()) -> None:
        """Restart with other hosts, end the input, and check the remaining state and the whole output."""
        on = self.cluster
        self.take(Turn(101))
        for step in on.hosts:
            on.hosts[step] = 1 + on.hosts[step] % 3
        on.restart()
        self.take(Turn(102, partitions=3))
        self._held()
        for closing in range(1, 1 + max(self.case.flow.depths.values())):
            self.epoch([[], []], mishaps, closing=closing)
        on.restart()
        self.epoch([[], []])
        self._held()
        files = Path(on.store).glob("dead_letters/*")
        letters = [line for file in files for line in file.read_text().splitlines()]
        assert len(letters) == len(self.dead), "dead letters in the store"
        if max(self.behind) <= DELAY_MS and not self.case.by_clock:
            assert not self.late, "rows were late that cannot be late"
            self._whole()

    def _held(self) -> None:
        """Assert that the store holds the expected number of keys."""
        for step, twin in self.model.steps.items():
            held = twin.held()
            if held is not None:
                assert len(self.cluster.keys(step)) == held, f"keys of {step} in the store"

    def _whole(self) -> None:
        """Assert that the sink holds the same rows as a run with all input in one epoch."""
        rows = [row for epoch in sorted(self.cluster.sink) for row in self.cluster.sink[epoch]]
        changing = CHANGE in self.case.flow.output.names
        twin, left = self.case.twin(), Counter[tuple[Any, ...]]()
        for closing in range(1 + max(self.case.flow.depths.values())):
            for row in twin.epoch([] if closing else self.came, 0, closing):
                left[row[:-1] if changing else row] += row[-1] if changing else 1
        wanted = sorted(((*row, n) for row, n in left.items() if n), key=repr)
        signed = rows if changing else [row | {CHANGE: 1} for row in rows]
        assert net(signed) == wanted, "the whole"


@contextmanager
def event_trial(
    name: str, store: str, behind: Sequence[int] = MOSTLY_IN_TIME, **kwargs: Any
) -> Iterator[EventTrial]:
    with cluster(CASES[name].flow, store, **kwargs) as on:
        yield EventTrial(name, on, behind)
