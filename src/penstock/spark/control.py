"""Actions of a running query for `penstock ctl`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.control.elastic import Steering

if TYPE_CHECKING:
    from penstock.spark.query import FlowQuery


def actions(query: FlowQuery) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Actions to add to the driver's Flight service, by name."""

    def status(_: dict[str, Any]) -> dict[str, Any]:
        newest = query.progress[-1:]
        return {
            "status": query.status,
            "placements": query.placements(),
            "progress": newest[0] if newest else None,
            "control": query.control.facts() if query.is_elastic else None,
        }

    def migration(order: dict[str, Any]) -> dict[str, Any]:
        query.migration = order["migration"]
        return {"migration": str(query.migration)}

    return {
        "control_status": status,
        "control_move": lambda order: query.move(order["step"], order["slots"], order["to"]),
        "control_scale": lambda order: query.scale(order["step"], order["hosts"]),
        "control_migration": migration,
        "control_steer": lambda order: query.steer(Steering.from_json(order)),
        "control_journal": lambda order: {"entries": query.journal[-order["last"] :]},
    }
