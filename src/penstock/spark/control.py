"""What a running query does when `penstock ctl` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.control.elastic import Steering

if TYPE_CHECKING:
    from penstock.spark.query import FlowQuery


def actions(query: FlowQuery) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The actions to add to the driver's Flight service."""

    def status(_: dict[str, Any]) -> dict[str, Any]:
        newest = query.progress[-1:]
        return {
            "status": query.status,
            "placements": query.placements(),
            "progress": newest[0] if newest else None,
            "control": query.control.facts() if query.is_elastic else None,
        }

    def move(order: dict[str, Any]) -> dict[str, Any]:
        query.move(order["step"], order["slots"], order["to"])
        return {}

    def scale(order: dict[str, Any]) -> dict[str, Any]:
        query.scale(order["step"], order["hosts"])
        return {}

    def migration(order: dict[str, Any]) -> dict[str, Any]:
        query.migration = order["migration"]
        return {"migration": str(query.migration)}

    def steer(order: dict[str, Any]) -> dict[str, Any]:
        return query.steer(Steering.from_json(order))

    def journal(order: dict[str, Any]) -> dict[str, Any]:
        return {"entries": query.journal[-order["last"] :]}

    return {
        "control_steer": steer,
        "control_journal": journal,
        "control_status": status,
        "control_move": move,
        "control_scale": scale,
        "control_migration": migration,
    }
