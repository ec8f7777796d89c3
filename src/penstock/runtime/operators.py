"""What the runtime runs: operators of three kinds, and marks between their items.

stateless   any item may be worked on at any time, by any number of workers
keyed       has parts; pieces of one part are worked on one at a time, in the order of arrival
global      one item at a time, in the order of arrival
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Kind = Literal["stateless", "keyed", "global"]


class Mark:
    """A punctuation: passes through all operators in order, and is not worked on.

    When it passes an operator, everything before it has been worked on and sent, and nothing behind
    it has been begun.
    """


class ChainOperator(Protocol):
    """One operator of a chain, as the runtime sees it.

    `split`, `join` and `size` are called by any thread, several at a time: they touch no state.
    `work` of a keyed operator is never called twice at a time for one part, that of a global one
    never twice at a time.
    """

    @property
    def name(self) -> str:
        """The operator's name, for people."""
        ...

    @property
    def kind(self) -> Kind:
        """How its work may be spread over workers."""
        ...

    @property
    def parts(self) -> int:
        """The most workers that a keyed operator can use; 1 for others."""
        ...

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        """Keyed operators: (part, piece) for each part that the item has something for. Cheap.

        Not called for others: their one piece is the item.
        """
        ...

    def work(self, part: int, piece: Any) -> Any:
        """The costly thing."""
        ...

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        """The items that go out for one that came in, from what `work` gave for its pieces."""
        ...

    def size(self, item: Any) -> int:
        """Records in an item that comes in or goes out: for costs and selectivities."""
        ...

    def mark(self, mark: Any) -> Sequence[Any]:
        """A mark passes; gives items that go out before it. Nothing else is done meanwhile."""
        ...
