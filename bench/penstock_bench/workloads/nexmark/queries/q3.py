"""Q3: who sells in a category, in three states.

SELECT P.name, P.city, P.state, A.id
FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
"""

from __future__ import annotations

import penstock as ps
from penstock_bench.workloads.nexmark.query import Events, Query


def flow(events: Events) -> ps.Flow:
    auctions = events.auction.where("category = 10").select("id", "seller")
    persons = events.person.where("state IN ('OR', 'ID', 'CA')").selectExpr(
        "id AS seller", "name", "city", "state"
    )
    joined = ps.flow(auctions).join(ps.flow(persons), on="seller")
    return joined.select("name", "city", "state", "id")


QUERY = Query(
    {"auction": ("id", "seller", "category"), "person": ("id", "name", "city", "state")}, flow
)
