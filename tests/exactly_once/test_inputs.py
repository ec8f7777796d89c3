"""Inputs that break off between two batches, or differ when a task is tried again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.courier.channels import Channels
from penstock.courier.delivery import Task
from penstock.errors import ChangedInputError
from tests.trials.cluster import PLAIN
from tests.trials.plain_rows import Row
from tests.trials.trial import FLOWS, RUNS, How, Mishap, Turn, everything, trial


@pytest.mark.parametrize("how", ["cut", "shorten"])
@pytest.mark.parametrize("name", FLOWS)
def test_no_row_behind_the_break_is_lost(tmp_path: Path, name: str, how: How) -> None:
    """If the end mark is missing, only the task is tried again, otherwise the whole epoch."""
    with trial(name, str(tmp_path), hosts=3) as flow:
        for seed, hit in enumerate((1, 2, 3)):
            runs = flow.take(Turn(seed, partitions=3, mishaps=(Mishap("courier.read", how, hit),)))
            if how == "cut":
                assert runs == 1
            elif hit == 1:  # a later one may be the last batch of its task, and all is there
                assert runs == 2
        flow.check()


def test_an_input_that_breaks_off_again_and_again(tmp_path: Path) -> None:
    breaks = [Mishap("courier.read", "cut", 1 + 2 * n) for n in range(3)]
    with trial("sums", str(tmp_path)) as flow:
        assert flow.take(Turn(0, partitions=1, mishaps=tuple(breaks))) == 1
        assert flow.cluster.tasks.attempts == 4
        flow.check()


def test_a_source_that_gives_other_rows_each_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run fails on it, so the query fails with the reason; nothing of the epoch counts."""
    with trial("sums", str(tmp_path), hosts=2) as flow:
        flow.take(Turn(0))
        epoch, parts = flow.cluster.epoch, everything("sums")
        pick = random.Random(1)
        read = flow.cluster.read

        def other(part: Sequence[Row], task: Task) -> Iterator[pa.RecordBatch]:
            more = [{"k": 1, "v": 1}] * pick.randrange(1, 1000)
            return read([*part, *more], task)

        with monkeypatch.context() as patch:
            patch.setattr(flow.cluster, "read", other)
            flow.cluster.reads = 2
            with pytest.raises(ChangedInputError, match="when its task was tried again") as refused:
                flow.cluster.run(parts)
        assert "the same rows when they are read again" in refused.value.hint
        assert flow.cluster.epoch == epoch
        assert flow.cluster.tasks.attempts >= 2 * RUNS
        flow.cluster.reads = 1
        flow.cluster.restart()
        flow.check()


def test_a_batch_that_does_not_reach_its_host_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close mark has the number of rows, so the host applies nothing, and Spark tries the task again."""
    write, first = Channels.write, iter([True])

    def losing(self: Channels, host: int, batch: pa.RecordBatch) -> None:
        missing = int(next(first, False))
        write(self, host, batch.slice(missing))
        self._sent[host] += missing

    monkeypatch.setattr(Channels, "write", losing)
    with trial("sums", str(tmp_path), settings=PLAIN) as flow:
        flow.take(Turn(3))
        assert flow.cluster.tasks.attempts == 3
        flow.check()
