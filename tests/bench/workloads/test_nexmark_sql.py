"""The SQL of the queries, on events small enough to work out by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock_bench.workloads.nexmark.catalog import QUERIES
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.files import read
from penstock_bench.workloads.nexmark.generator import generate
from penstock_bench.workloads.nexmark.oracle import answer

START = datetime(2015, 7, 15, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def person(
    id: int | None, seconds: float = 0, name: str = "Ann", state: str = "CA"
) -> dict[str, Any]:
    return {
        "id": id, "name": name, "email_address": "a@b.com", "credit_card": "1", "city": "Bend",
        "state": state, "date_time": at(seconds).isoformat(), "extra": "",
    }  # fmt: skip


def auction(
    id: int | None,
    seconds: float = 0,
    until: float = 60,
    seller: int | None = 1,
    category: int = 10,
) -> dict[str, Any]:
    return {
        "id": id, "item_name": f"item {id}", "description": "d", "initial_bid": 1, "reserve": 2,
        "date_time": at(seconds).isoformat(), "expires": at(until).isoformat(), "seller": seller,
        "category": category, "extra": "x",
    }  # fmt: skip


def bid(
    auction: int | None, price: int | None, seconds: float = 0, bidder: int | None = 1, **more: Any
) -> dict[str, Any]:
    return {
        "auction": auction, "bidder": bidder, "price": price, "channel": "Apple",
        "url": "https://www.nexmark.com/a/b/c/item.htm?query=1",
        "date_time": at(seconds).isoformat(), "extra": "", **more,
    }  # fmt: skip


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """A function that returns the rows of a query's result, as sorted tuples."""

    def rows(query: str, *events: dict[str, Any]) -> list[tuple[Any, ...]]:
        for stream, key in (("person", "email_address"), ("auction", "seller"), ("bid", "bidder")):
            lines = [json.dumps(event) + "\n" for event in events if key in event]
            (tmp_path / f"{stream}.ndjson").write_text("".join(lines))
        found = answer(query, tmp_path)
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    return rows


def test_stateless_queries(ask: Any) -> None:
    one = bid(246, 1000, 3, extra="accc")
    assert ask("q0", one) == [(246, 1, 1000, at(3), "accc")]
    assert ask("q1", one) == [(246, 1, Decimal("908.000"), at(3), "accc")]
    assert ask("q2", one, bid(247, 5), bid(None, 5)) == [(246, 1000)]
    assert ask("q10", one) == [(246, 1, 1000, at(3), "accc", "2015-07-15", "00:00")]
    assert ask("q13", one, bid(10_003, 1), bid(-3, 1), bid(None, 1)) == [
        (10_003, 1, 1, at(0), "3"),
        (246, 1, 1000, at(3), "246"),
    ]


def test_q14_times_of_day_and_letters(ask: Any) -> None:
    hours = [0, 6, 6.99, 7, 7.99, 8, 18.99, 19, 20, 23]
    bids = [bid(i, 2_000_000, hour * 3600, extra="c" * i + "C") for i, hour in enumerate(hours)]
    found = sorted(ask("q14", *bids, bid(99, 1_000_000), bid(99, 100_000_000)))
    assert [row[3].removesuffix("Time") for row in found] == [
        "night", "night", "night", "other", "other", "day", "day", "other", "night", "night",
    ]  # fmt: skip
    assert [row[6] for row in found] == list(range(10))
    assert found[0][2] == Decimal("1816000.000")


def test_q21_and_q22_take_addresses_apart(ask: Any) -> None:
    def ids(channel: str | None, url: str | None) -> list[Any]:
        return [row[4] for row in ask("q21", bid(1, 1, channel=channel, url=url))]

    assert ids("GOOGLE", None) == ["1"]
    assert [ids(name, "") for name in ("apple", "Facebook", "baidu")] == [["0"], ["2"], ["3"]]
    assert ids("other", "https://x/y?query=1&channel_id=77&z=1") == ["77"]
    assert ids("other", "channel_id=") == [""]
    assert ids("other", "https://x/?channel_id=77") == []
    assert ids(None, None) == []

    def parts(url: str | None) -> Any:
        return ask("q22", bid(1, 1, url=url))[0][4:]

    assert parts("https://www.nexmark.com/a/b/c/item.htm") == ("a", "b", "c")
    assert parts("https://www.nexmark.com/a/") == ("a", "", None)
    assert parts(None) == (None, None, None)


def test_q3_and_q20_join(ask: Any) -> None:
    people = [person(1), person(2, state="WA"), person(3, name="Bob", state="ID"), person(None)]
    auctions = [auction(7), auction(8, seller=2), auction(9, seller=3, category=11)]
    auctions += [auction(10, seller=3), auction(11, seller=None)]
    assert ask("q3", *people, *auctions) == [("Ann", "Bend", "CA", 7), ("Bob", "Bend", "ID", 10)]
    found = ask("q20", *auctions, bid(7, 5), bid(9, 6), bid(7, 7), bid(99, 1), bid(None, 1))
    assert [row[2] for row in found] == [5, 7]
    assert found[0][7:] == ("item 7", "d", 1, 2, at(0), at(60), 1, 10, "x")


def test_q4_counts_bids_while_the_auction_is_open(ask: Any) -> None:
    auctions = [auction(7, 10, 20), auction(8, 10, 20), auction(9, 0, 50, category=11)]
    bids = [bid(7, 100, 9.9), bid(7, 5, 10), bid(7, 7, 20), bid(7, 99, 20.1)]
    assert ask("q4", *auctions, *bids, bid(8, 8, 15), bid(9, 3, 49)) == [(10, 7.5), (11, 3.0)]


def test_q5_windows_overlap(ask: Any) -> None:
    """Windows begin at -8, -6, ... 10; those up to 0 contain the bids of auction 1, and so on."""
    found = ask("q5", bid(1, 1, 0), bid(1, 1, 1.9), bid(2, 1, 10), bid(3, 1, 10.5))
    assert found == [(1, 2)] * 5 + [(2, 1)] * 5 + [(3, 1)] * 5


def test_q6_the_last_ten_of_a_seller(ask: Any) -> None:
    auctions = [auction(id, seller=5) for id in range(1, 13)] + [auction(50, seller=6)]
    bids = [bid(id, 100 + id, 12 - id) for id in range(1, 13)] + [bid(50, 9, 1), bid(50, 9, 2)]
    assert ask("q6", *auctions, *bids) == [(5, sum(range(101, 111)) / 10), (6, 9.0)]


def test_q6_later_ids_are_later_at_the_same_time(ask: Any) -> None:
    auctions = [auction(id, seller=5) for id in range(1, 13)]
    bids = [bid(id, 100 + id, 1) for id in range(1, 13)]
    assert ask("q6", *auctions, *bids) == [(5, sum(range(103, 113)) / 10)]


def test_q7_a_bid_on_the_end_counts_in_both_windows(ask: Any) -> None:
    low, high, edge = bid(1, 5, 1), bid(2, 9, 2), bid(3, 9, 10)
    prices = ask("q7", low, high, edge)
    assert [(row[0], row[1]) for row in prices] == [(2, 9), (3, 9), (3, 9)]
    assert ask("q7", low, bid(2, 9, 2), bid(3, 10, 10), bid(4, 9, 11)) == [
        (2, 9, 1, at(2), ""),
        (3, 10, 1, at(10), ""),
    ]


def test_q8_people_who_sell_in_the_window_of_their_arrival(ask: Any) -> None:
    people = [person(1, 1), person(1, 2), person(1, 3, name="Eve"), person(2, 9), person(3, 11)]
    auctions = [auction(7, 9, seller=1), auction(8, 9.5, seller=1), auction(9, 10, seller=2)]
    assert ask("q8", *people, *auctions, auction(10, 19, seller=3)) == [
        (1, "Ann", at(0)),
        (1, "Eve", at(0)),
        (3, "Ann", at(10)),
    ]


def test_q9_the_winning_bid(ask: Any) -> None:
    late, early = bid(7, 9, 3, bidder=1), bid(7, 9, 2, bidder=3)
    found = ask("q9", auction(7, 0, 10), auction(8), late, early, bid(7, 50, 11), bid(7, 8, 1))
    assert [row[10:] for row in found] == [(7, 3, 9, at(2), "")]
    found = ask("q9", auction(7), bid(7, 9, bidder=4), bid(7, 9, bidder=2, extra="b"),
                bid(7, 9, bidder=2, extra="a"), bid(7, 9, bidder=2, extra="c"))  # fmt: skip
    assert [row[10:] for row in found] == [(7, 2, 9, at(0), "a")]


def test_q11_a_pause_of_ten_seconds_ends_a_session(ask: Any) -> None:
    times = [0, 9.999, 19.998, 29.998, 29.998]
    bids = [bid(1, 1, seconds) for seconds in times]
    others = [bid(1, 1, 5, bidder=2), bid(1, 1, 5, bidder=None), bid(2, 1, 6, bidder=None)]
    assert ask("q11", *bids, *others) == [
        (1, 2, at(29.998), at(39.998)),
        (1, 3, at(0), at(29.998)),
        (2, 1, at(5), at(15)),
        (None, 2, at(5), at(16)),
    ]
    assert ask("q12", *bids, *others) == [(1, 5), (2, 1), (None, 2)]


def test_q15_to_q17_ranks_of_prices(ask: Any) -> None:
    bids = [
        bid(1, 9_999, 0, bidder=1),
        bid(1, 10_000, 61, bidder=1),
        bid(2, 999_999, 86_399, bidder=2, channel="b"),
        bid(2, 1_000_000, 5, bidder=1),
        bid(1, 1, 86_400, bidder=None),
    ]
    first = (4, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1)
    second = (1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0)
    assert ask("q15", *bids) == [("2015-07-15", *first), ("2015-07-16", *second)]
    assert [row[:4] for row in ask("q16", *bids)] == [
        ("Apple", "2015-07-15", "00:01", 3),
        ("Apple", "2015-07-16", "00:00", 1),
        ("b", "2015-07-15", "23:59", 1),
    ]
    assert ask("q17", *bids) == [
        (1, "2015-07-15", 2, 1, 1, 0, 9_999, 10_000, 9_999.5, 19_999),
        (1, "2015-07-16", 1, 1, 0, 0, 1, 1, 1.0, 1),
        (2, "2015-07-15", 2, 0, 1, 1, 999_999, 1_000_000, 999_999.5, 1_999_999),
    ]


def test_q18_the_last_of_each_pair(ask: Any) -> None:
    bids = [bid(1, 5, 1), bid(1, 4, 2), bid(1, 3, 2, channel="b"), bid(1, 3, 2), bid(2, 9, 0)]
    assert [row[:4] for row in ask("q18", *bids)] == [(1, 1, 3, "Apple"), (2, 1, 9, "Apple")]


def test_q19_the_ten_highest(ask: Any) -> None:
    bids = [bid(1, price, 20 - price) for price in range(1, 13)]
    found = sorted(
        ask("q19", *bids, bid(1, 3, 1), bid(1, None), bid(2, 7)), key=lambda r: (r[0], r[7])
    )
    assert [(row[0], row[2], row[7]) for row in found] == [
        *((1, 13 - rank, rank) for rank in range(1, 11)),
        (2, 7, 1),
    ]
    assert found[9][5] == at(1)


@pytest.mark.parametrize("disorder_ms", [0, 500])
def test_both_formats_give_the_same_answers(disorder_ms: int, tmp_path: Path) -> None:
    config = NexmarkConfig(events=3_000, rate=100, disorder_ms=disorder_ms)
    for format in ("ndjson", "parquet"):
        generate(config, tmp_path / format, format)
    for query in QUERIES:
        one, other = (answer(query, tmp_path / format) for format in ("ndjson", "parquet"))
        assert one.num_rows
        by = [(name, "ascending") for name in one.column_names]
        assert one.sort_by(by).equals(other.sort_by(by)), query


def test_no_events_no_answers(tmp_path: Path) -> None:
    (tmp_path / "bid.ndjson").touch()
    assert [answer(query, tmp_path).num_rows for query in QUERIES] == [0] * 23


def test_forms_of_times_are_those_of_the_reader(tmp_path: Path) -> None:
    forms = ["2015-07-15T00:00:01Z", "2015-07-15 00:00:01", 1_436_918_401_000, None, -1]
    forms += ["2015-07-15T02:00:01.5+02:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999"]
    rows = [bid(i, 1) | {"date_time": form} for i, form in enumerate(forms)]
    (tmp_path / "bid.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = read(tmp_path)["bid"]
    assert (
        answer("q0", tmp_path)
        .sort_by("auction")
        .column("date_time")
        .equals(expected.column("date_time"))
    )
    days = answer("q10", tmp_path).sort_by("auction").column("dt").to_pylist()
    assert days[-2:] == ["0001-01-01", "9999-12-31"]
    (tmp_path / "bid.ndjson").unlink()
    pq.write_table(expected, tmp_path / "bid.parquet")
    again = answer("q0", tmp_path).sort_by("auction")
    assert again.column("date_time").equals(expected.column("date_time"))
