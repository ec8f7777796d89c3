"""The keyed step of the demo. Hosts load this module, so it imports nothing that they do not have already."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.operators.process.processor import KeyedProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.state.variables.handle import StateHandle, Timers
    from penstock.state.variables.values import Row

SCREEN_S = 0.01
"""Seconds that the screening of a bid takes."""


class ScreenedBids(KeyedProcessor):
    """Screens each bid of an auction, and keeps the auction's totals."""

    output_schema = "auction long, bids long, highest long, total long"

    def init(self, handle: StateHandle) -> None:
        self._totals = handle.get_value_state("totals", "bids long, highest long, total long")

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> list[tuple[int, ...]]:
        bids, highest, total = self._totals.get() or (0, 0, 0)
        for row in rows:
            _screen(row.bidder)
            bids, highest, total = bids + 1, max(highest, row.price), total + row.price
        self._totals.update((bids, highest, total))
        return [(key[0], bids, highest, total)]


def _screen(bidder: int) -> None:
    """Wait as long as a call to a screening service would take. There is no such service here."""
    time.sleep(SCREEN_S)
