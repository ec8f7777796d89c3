"""The queries by name."""

from __future__ import annotations

from penstock.errors import SettingError
from penstock_bench.workloads.nexmark.queries import auctions, counts, stateless, windows
from penstock_bench.workloads.nexmark.query import NexmarkQuery

_ALL = {**stateless.QUERIES, **auctions.QUERIES, **windows.QUERIES, **counts.QUERIES}
QUERIES: dict[str, NexmarkQuery] = {f"q{n}": _ALL[f"q{n}"] for n in range(23)}
TITLES = {name: query.title for name, query in QUERIES.items()}


def find(name: str) -> NexmarkQuery:
    """The query of this name."""
    if name not in QUERIES:
        raise SettingError(
            f"there is no NEXMark query {name!r}", hint=f"the queries are {', '.join(QUERIES)}"
        )
    return QUERIES[name]
