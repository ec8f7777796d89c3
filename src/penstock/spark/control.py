"""Actions of a running query for `penstock ctl`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.control.elastic import Steering
from penstock.driver.epoch_times import epoch_times
from penstock.state.keys.text import KeyText

if TYPE_CHECKING:
    from penstock.spark.query import FlowQuery


def actions(query: FlowQuery) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Actions to add to the driver's Flight service, by name."""

    def status(_: dict[str, Any]) -> dict[str, Any]:
        progress = query.progress
        return {
            "status": query.status,
            "placements": query.placements(),
            "progress": replace(progress[-1], spans=()) if progress else None,
            "times": epoch_times(progress),
            "backlog": query.backlog,
            "control": query.control.facts() if query.is_elastic else None,
            "slot_success": query.slot_success(),
        }

    def migration(order: dict[str, Any]) -> dict[str, Any]:
        query.migration = order["migration"]
        return {"migration": str(query.migration)}

    def move(order: dict[str, Any]) -> None:
        query.move(
            order["step"], order["slots"], order["to"], keys=map(KeyText, order.get("keys", ()))
        )

    def moments(order: dict[str, Any]) -> dict[str, Any]:
        """The recording: at most so many moments since a time, oldest first."""
        recording, most = query.recording, order["most"]
        newer = recording.moments(order["since_ms"])[:most] if most else []
        return {"facts": recording.facts, "moments": newer}

    return {
        "control_status": status,
        "control_move": move,
        "control_scale": lambda order: query.scale(order["step"], order["hosts"]),
        "control_migration": migration,
        "control_steer": lambda order: query.steer(Steering.from_json(order)),
        "control_journal": lambda order: {"entries": query.journal[-order["last"] :]},
        "control_moments": moments,
    }
