"""The answers to the tasks by DuckDB, and the comparison with what a side wrote.

A side writes text lines. The whole numbers of a line are the columns of a row, in whatever brackets its
engine puts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock_bench.peers.stream import SECOND_US, SMALL, SMALL_ROWS, WINDOW_S, fold_sql

_WINDOWS = SMALL_ROWS // SMALL.rows_per_window - 1
"""Windows that are compared: without the last, which an endless source never closes."""
_WANTED = {
    "sum": "SELECT k, sum(v) FROM rows GROUP BY k",
    "windowed": f"SELECT k, t // {WINDOW_S * SECOND_US} AS w, count(*) FROM rows "
    f"GROUP BY k, w HAVING w < {_WINDOWS}",
    "python_fn": f"SELECT k, {fold_sql()} FROM rows GROUP BY k",
}
_WRITTEN = {
    # Values never fall, so that the last update of a key is its highest.
    "sum": "SELECT n[1], max(n[2]) FROM lines GROUP BY n[1]",
    # All rows, and not the last of each window: a window counted twice is an error.
    "windowed": f"SELECT n[1], n[2], n[3] FROM lines WHERE n[2] < {_WINDOWS}",
    "python_fn": "SELECT n[1], max(n[2]), arg_max(n[3], n[2]), arg_max(n[4], n[2]) FROM lines GROUP BY n[1]",
}
_TAKEN_BACK = ("-U", "-D")
"""How Flink begins a line of a row that it takes back."""


def wrong(task: str, folder: Path) -> str:
    """What is wrong with the answer in this folder; empty if nothing is."""
    import duckdb

    files = [file for file in folder.rglob("*") if file.is_file() and not _hidden(file, folder)]
    lines = [line for file in files for line in file.read_text().splitlines()]
    kept = [line for line in lines if line and not line.startswith(_TAKEN_BACK)]
    with duckdb.connect() as db:
        sql = SMALL.sql("i", "//")
        columns = ", ".join(f"{text} AS {name}" for name, text in sql.items())
        db.execute(f"CREATE VIEW rows AS SELECT {columns} FROM range({SMALL_ROWS}) AS r(i)")
        db.execute("CREATE TABLE texts (line VARCHAR)")
        if kept:
            db.execute("INSERT INTO texts SELECT unnest(?)", [kept])
        digits = "regexp_extract_all(line, '-?\\d+')::BIGINT[]"
        db.execute(f"CREATE VIEW lines AS SELECT {digits} AS n FROM texts")
        wanted = _sorted(db.execute(_WANTED[task]).fetchall())
        written = _sorted(db.execute(_WRITTEN[task]).fetchall())
    if written == wanted:
        return ""
    missing, more = set(wanted) - set(written), set(written) - set(wanted)
    examples = [*sorted(missing)[:1], *sorted(more)[:1]]
    counts = f"{len(written):,} rows instead of {len(wanted):,}"
    return f"{counts}, {len(missing):,} missing, {len(more):,} unexpected, such as {examples}"


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[int, ...]]:
    return sorted(tuple(map(int, row)) for row in rows)


def _hidden(file: Path, folder: Path) -> bool:
    """Whether this is not output: checksums, markers, and files that Flink has not finished."""
    return any(part[0] in "._" for part in file.relative_to(folder).parts)
