"""The bench's flow as a function of the user, which Spark's tasks find by name."""

from __future__ import annotations

from typing import Any

import penstock as ps


class Sums(ps.KeyedProcessor):
    """The count and sum of a key, with an update for each row."""

    output_schema = "k long, n long, s long, t long"

    def init(self, handle: Any) -> None:
        self.state = handle.get_value_state("state", "n long, s long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Any:
        n, s = self.state.get() or (0, 0)
        updates = []
        for row in rows:
            n, s = n + 1, s + row.v
            updates.append((*key, n, s, row.t))
        self.state.update((n, s))
        return updates
