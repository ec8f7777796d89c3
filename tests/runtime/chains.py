"""Random chains of operators whose output shows every change of order, and their items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from penstock.runtime import ChainOperator, Mark
from tests.runtime.record_operators import chunked, global_, keyed, stateless


@dataclass(frozen=True)
class Link:
    """The definition of one operator, which is made again for each run, since operators keep state."""

    kind: str
    modulus: int
    """Divisor of which the remainders are the keys: 1 is the worst skew."""
    outputs: tuple[int, ...]
    """Number of output records for an input record, indexed by its value modulo the length."""
    parts: int

    def make(self, name: str) -> ChainOperator:
        """A new operator, with new state."""
        if self.kind == "stateless":
            return stateless(name, lambda record: self._out(record, 0))
        if self.kind == "global":
            return global_(name, self._remember, [0])
        return keyed(name, self._remember, lambda r: r % self.modulus, self.parts, lambda: [0])

    def _remember(self, record: int, state: list[int]) -> Sequence[int]:
        """Mix in all records before this one, so that any other order has another output."""
        state[0] = (state[0] * 31 + record + 7) % 1_000_003
        return self._out(record, state[0])

    def _out(self, record: int, extra: int) -> Sequence[int]:
        number = self.outputs[record % len(self.outputs)]
        return [(record * 17 + extra + copy) % 1_000_003 for copy in range(number)]


class Flush(Mark):
    """A mark with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flush) and self.number == other.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Flush({self.number})"


class Telling:
    """A keyed or global operator that emits and resets its counts of pieces per part when a mark passes."""

    def __init__(self, inner: ChainOperator) -> None:
        self._inner = inner
        self.name, self.kind, self.parts = inner.name, inner.kind, inner.parts
        self.split, self.join, self.size = inner.split, inner.join, inner.size
        self._seen: list[int] = [0] * inner.parts

    def work(self, part: int, piece: Any) -> Any:
        """Count the pieces of each part."""
        self._seen[part] += 1
        return self._inner.work(part, piece)

    def mark(self, mark: Any) -> Sequence[Any]:
        """Emit the counts as one number, and reset them."""
        seen, self._seen = self._seen, [0] * self.parts
        return [sum(count * 1000**part for part, count in enumerate(seen))]


links = st.builds(
    Link,
    st.sampled_from(["stateless", "keyed", "keyed", "global"]),
    st.sampled_from([1, 2, 7, 1000]),
    st.sampled_from([(1,), (1,), (0, 1), (1, 2), (0, 0, 3), (5, 0, 1)]),
    st.sampled_from([1, 2, 3, 8, 100]),
)
chains = st.lists(links, min_size=1, max_size=4)


def operators_of(chain: Sequence[Link], chunk: int | None) -> list[ChainOperator]:
    """New operators of a chain; over lists of records if there is a chunk size."""
    made = [link.make(f"{place}-{link.kind}") for place, link in enumerate(chain)]
    return made if chunk is None else [chunked(operator) for operator in made]


def items_of(records: Sequence[int], chunk: int | None, marks_every: int | None) -> list[Any]:
    """Records, or chunks of them, with a mark after every `marks_every` items."""
    items: list[Any] = (
        list(records)
        if chunk is None
        else [list(records[at : at + chunk]) for at in range(0, len(records), chunk)]
    )
    if marks_every is None:
        return items
    marked: list[Any] = []
    for place, item in enumerate(items):
        marked.append(item)
        if place % marks_every == marks_every - 1:
            marked.append(Flush(place))
    return marked
