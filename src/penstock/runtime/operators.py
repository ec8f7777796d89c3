"""The input of the runtime: operators of three kinds, and marks between their items.

stateless   items are processed at any time, by any number of workers
keyed       has parts; pieces of one part are processed one at a time, in order of arrival
global      items are processed one at a time, in order of arrival
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Kind = Literal["stateless", "keyed", "global"]


class Mark:
    """A punctuation: it passes through all operators in order, and is not processed.

    When it passes an operator, all items before it have been processed and sent, and no item after it has
    been started.
    """


class ChainOperator(Protocol):
    """One operator of a chain, as the runtime sees it.

    `split`, `join` and `size` are called by several threads at once, so they must not use state. Calls of
    `work` for one part of a keyed operator never overlap, and calls of `work` of a global operator never
    overlap.
    """

    @property
    def name(self) -> str:
        """The operator's name, for display."""
        ...

    @property
    def kind(self) -> Kind:
        """The kind of the operator: how its work may be spread over workers."""
        ...

    @property
    def parts(self) -> int:
        """Number of parts of a keyed operator, the most workers that it can use; 1 for other operators."""
        ...

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        """Cut an item into (part, piece) pairs, for keyed operators only. Must be cheap.

        For other operators the only piece is the item itself.
        """
        ...

    def work(self, part: int, piece: Any) -> Any:
        """Process one piece. This is the expensive call."""
        ...

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        """The output items of one input item; `results` has the return values of `work` for its pieces."""
        ...

    def size(self, item: Any) -> int:
        """Number of records in an input or output item, to compute costs and selectivities."""
        ...

    def mark(self, mark: Any) -> Sequence[Any]:
        """Handle a passing mark. Returns items to send before it. No other call runs meanwhile."""
        ...
