"""The peers' tasks on Pathway, with two threads, and its persistence written each second.

Its engine has no generator of its own, and a Python source would cost a call per row. So it reads CSV files,
which its Rust code parses; they are written before the clock starts.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from penstock_bench.peers.stream import FULL, SECOND_US, SMALL, SMALL_ROWS, WINDOW_S, Stream, fold
from penstock_bench.peers.timing import children, rate, tell

_MODULE = "penstock_bench.peers.sides.pathway_side"
_FILE_ROWS = 20_000


def main(task: str, how: str, seconds: str, folder: str) -> None:
    """Time the task, or write its answer."""
    runs = itertools.count()

    def run(rows: int, answer: str = "") -> float:
        place = Path(folder, f"run-{next(runs)}")
        _write(SMALL if answer else FULL, rows, place / "rows")
        return children(_MODULE, [["one", task, str(place), answer]])

    facts: dict[str, Any] = {}
    if how != "time":
        answer = Path(folder, "answer")
        answer.mkdir(parents=True)
        run(SMALL_ROWS, str(answer))
    if how != "answer":
        facts = rate(run, float(seconds), first=100_000, step=_FILE_ROWS)
    tell(facts)


def _write(stream: Stream, rows: int, place: Path) -> None:
    """Write the rows, as files that two threads can share."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    place.mkdir(parents=True)
    for start in range(0, rows, _FILE_ROWS):
        columns = stream.columns(np.arange(start, min(rows, start + _FILE_ROWS)))
        table = pa.table(dict(zip("kvt", columns, strict=True)))
        csv.write_csv(table, place / f"{start:012}.csv")


def one(task: str, place: str, answer: str) -> None:
    """One run. With `answer`, a folder, it writes the answer there."""
    import pathway as pw

    class Row(pw.Schema):  # type: ignore[misc]
        k: int
        v: int
        t: int

    rows = pw.io.csv.read(str(Path(place, "rows")), schema=Row, mode="static")
    out = _out(pw, rows, task)
    if answer:
        pw.io.subscribe(out, on_change=_writer(Path(answer, "all.txt")))
    else:
        pw.io.null.write(out)
    backend = pw.persistence.Backend.filesystem(str(Path(place, "state")))
    config = pw.persistence.Config(backend, snapshot_interval_ms=1000)
    began = time.monotonic()
    pw.run(persistence_config=config, monitoring_level=pw.MonitoringLevel.NONE)
    tell({"seconds": time.monotonic() - began})


def _out(pw: Any, rows: Any, task: str) -> Any:
    if task == "pass_through":
        return rows
    if task == "sum":
        return rows.groupby(rows.k).reduce(rows.k, s=pw.reducers.sum(rows.v))
    if task == "windowed":
        window = pw.temporal.tumbling(duration=WINDOW_S * SECOND_US)
        # Its operators know no order of files, so that a window has no end before the input's.
        counted = rows.windowby(rows.t, window=window, instance=rows.k)
        return counted.reduce(
            k=pw.this._pw_instance,
            start=pw.this._pw_window_start // SECOND_US,
            n=pw.reducers.count(),
        )

    @pw.reducers.stateful_many  # type: ignore[untyped-decorator]
    def folded(state: Any, changes: Any) -> Any:
        for (v,), count in changes:
            for _ in range(count):
                state = fold(state, v)
        return state

    return rows.groupby(rows.k).reduce(rows.k, state=folded(rows.v))


def _writer(file: Path) -> Any:
    def write(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            with file.open("a") as lines:
                lines.write(f"{list(row.values())}\n")

    return write


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(*sys.argv[2:5])
    else:
        main(*sys.argv[1:5])
