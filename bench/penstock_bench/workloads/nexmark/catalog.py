"""The queries by name. Light to import: a query's own module is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from penstock.errors import SettingError
from penstock_bench.workloads.nexmark.query import Query

TITLES = {
    "q0": "All bids, as they are.",
    "q1": "Prices in another currency.",
    "q2": "Bids on some auctions.",
    "q3": "Who sells in a category, in three states.",
    "q4": "Average closing price of a category.",
    "q5": "Auctions with the most bids, over a hopping window.",
    "q6": "Average of a seller's last ten closing prices.",
    "q7": "The highest bids of each ten seconds.",
    "q8": "Persons who open an auction in the ten seconds that they came in.",
    "q9": "The winning bid of each auction.",
    "q10": "All bids, with day and minute for a file system.",
    "q11": "Bids of a bidder while he is active: sessions.",
    "q12": "Bids of a bidder in each ten seconds of the day's time.",
    "q13": "Bids with a value looked up in a bounded table.",
    "q14": "Bids of a price range, with what is computed from them.",
    "q15": "Bids, bidders and auctions of each day.",
    "q16": "Bids, bidders and auctions of each channel and day.",
    "q17": "Bids and prices of each auction and day.",
    "q18": "The last bid of each bidder on each auction.",
    "q19": "The ten highest bids of each auction.",
    "q20": "Bids with their auction, of a category.",
    "q21": "Bids with the id of their channel.",
    "q22": "Bids with three folders of their address.",
}


def find(name: str) -> Query:
    """The query of this name."""
    if name not in TITLES:
        raise SettingError(
            f"there is no NEXMark query {name!r}", hint=f"the queries are {', '.join(TITLES)}"
        )
    query = import_module(f"penstock_bench.workloads.nexmark.queries.{name}").QUERY
    assert isinstance(query, Query)
    return query
