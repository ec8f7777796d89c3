"""What ends a run before its end."""

from __future__ import annotations


class Halted(Exception):
    """A worker would begin something new, but an item has failed."""


class Failure(Exception):
    """Carries an error to the runtime, with the place of the item that failed."""

    def __init__(self, order: tuple[int, int], error: BaseException) -> None:
        super().__init__(order, error)
        self.order, self.error = order, error


class Halt:
    """Says to all stages of a runtime that nothing new may be begun."""

    on = False
