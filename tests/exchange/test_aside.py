"""Rows that are set aside, on their way from a host to a courier and on to the driver."""

from __future__ import annotations

import pyarrow as pa

from penstock import codec
from penstock.exchange.aside import Aside, late_tables
from penstock.model import DeadLetter

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2], "word": ["ä", None]})


def test_hosts_and_couriers_set_aside_together() -> None:
    host, courier = Aside([DeadLetter("sum", "k", "{}", "no")]), Aside()
    host.add_late("window", [(0, ROWS), (1, ROWS.slice(0, 1))], keep=True)
    courier.add_late("window", [(0, ROWS)], keep=True)
    courier.add(codec.decode(codec.encode(host), Aside))
    received = codec.from_plain(codec.to_plain(courier), Aside)
    assert received.dead == host.dead
    assert received.late_counts() == {"window": 5}
    tables = late_tables([received])
    assert {place: rows.num_rows for place, rows in tables.items()} == {
        ("window", 0): 4,
        ("window", 1): 1,
    }
    assert tables["window", 0].to_pylist() == ROWS.to_pylist() * 2


def test_late_rows_that_are_not_kept_are_only_counted() -> None:
    aside = Aside()
    aside.add_late("window", [(0, ROWS), (0, ROWS.slice(0, 0))], keep=False)
    assert aside.late_counts() == {"window": 2}
    assert late_tables([aside]) == {}
    assert not Aside()
