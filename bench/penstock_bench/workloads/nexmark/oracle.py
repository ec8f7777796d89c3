"""The answers to the NEXMark queries by DuckDB, straight from the files: an oracle for the flows.

It shares no code with the readers, so that it can find their errors. Times are UTC. Nulls are
smallest, as in Spark. q12 depends on processing time, so its answer is each bidder's total number of bids.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from penstock_bench.workloads.nexmark.catalog import find

_COLUMNS = {
    "person": {
        "id": "BIGINT", "name": "VARCHAR", "email_address": "VARCHAR", "credit_card": "VARCHAR",
        "city": "VARCHAR", "state": "VARCHAR", "date_time": "TIME", "extra": "VARCHAR",
    },
    "auction": {
        "id": "BIGINT", "item_name": "VARCHAR", "description": "VARCHAR", "initial_bid": "BIGINT",
        "reserve": "BIGINT", "date_time": "TIME", "expires": "TIME", "seller": "BIGINT",
        "category": "BIGINT", "extra": "VARCHAR",
    },
    "bid": {
        "auction": "BIGINT", "bidder": "BIGINT", "price": "BIGINT", "channel": "VARCHAR",
        "url": "VARCHAR", "date_time": "TIME", "extra": "VARCHAR",
    },
}  # fmt: skip

_SPARK_WORDS = """
    CREATE MACRO date_format(t, form) AS
        strftime(t, CASE form WHEN 'yyyy-MM-dd' THEN '%Y-%m-%d' ELSE '%H:%M' END);
    CREATE MACRO regexp_like(text, pattern) AS regexp_matches(text, pattern);
    CREATE MACRO get(list, place) AS list[place + 1];
    CREATE MACRO window_of(t, length) AS {
        'start': time_bucket(length::INTERVAL, t, TIMESTAMP '1970-01-01'),
        'end': time_bucket(length::INTERVAL, t, TIMESTAMP '1970-01-01') + length::INTERVAL
    };
"""
"""DuckDB macros for Spark functions in the queries. `window` is a reserved word, so it is `window_of`."""


def answer(query: str, folder: str | Path) -> pa.Table:
    """The expected rows of a query for the events of a folder, in no particular order."""
    with duckdb.connect() as db:
        db.execute(
            "SET TimeZone = 'UTC'; SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'"
        )
        for stream in _COLUMNS:
            _load(db, stream, Path(folder))
        db.execute(_SPARK_WORDS)
        definition = find(query)
        sql = definition.truth or definition.sql.replace("window(", "window_of(")
        table = db.sql(sql).to_arrow_table()
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            in_utc = table.column(i).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
            table = table.set_column(i, field.name, in_utc)
    return table


def _load(db: duckdb.DuckDBPyConnection, stream: str, folder: Path) -> None:
    """Load a stream's file as a table, with times in UTC without a zone."""
    columns = _COLUMNS[stream]
    in_json = {name: type.replace("TIME", "VARCHAR") for name, type in columns.items()}
    if (file := folder / f"{stream}.ndjson").exists() and file.stat().st_size:
        source = f"read_json('{file}', format = 'newline_delimited', columns = {in_json})"
    elif (file := folder / f"{stream}.parquet").exists():
        source = f"read_parquet('{file}')"
    else:
        nothing = ", ".join(f"NULL::{type} AS {name}" for name, type in in_json.items())
        source = f"(SELECT {nothing} LIMIT 0)"
    taken = [
        f"{_utc(name)} AS {name}" if type == "TIME" else f"{name}::{type} AS {name}"
        for name, type in columns.items()
    ]
    db.execute(f"CREATE TABLE {stream} AS SELECT {', '.join(taken)} FROM {source}")


def _utc(name: str) -> str:
    text = f"{name}::VARCHAR"
    millis = f"make_timestamp(TRY_CAST({text} AS BIGINT) * 1000)"
    return (
        f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN {millis} "
        f"ELSE {text}::TIMESTAMPTZ AT TIME ZONE 'UTC' END"
    )
