"""What the runtime runs: operators of three kinds, and plain ones made of functions.

stateless   any item may be worked on at any time, by any number of workers
keyed       has parts; pieces of one part are worked on one at a time, in the order of arrival
global      one item at a time, in the order of arrival
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class _RecordOperator:
    """An operator whose items are single records."""

    kind: Kind = "stateless"
    parts = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        return ((0, item),)

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = results[0]
        return outputs

    def size(self, item: Any) -> int:
        return 1

    def mark(self, mark: Any) -> Sequence[Any]:
        return ()


class _StatelessOperator(_RecordOperator):
    def __init__(self, name: str, f: Callable[[Any], Sequence[Any]]) -> None:
        super().__init__(name)
        self._f = f

    def work(self, part: int, piece: Any) -> Any:
        return self._f(piece)


class _KeyedOperator(_RecordOperator):
    kind: Kind = "keyed"

    def __init__(
        self,
        name: str,
        f: Callable[[Any, Any], Sequence[Any]],
        key: Callable[[Any], Any],
        parts: int,
        make_state: Callable[[], Any],
        part_of: Callable[[Any], int],
    ) -> None:
        super().__init__(name)
        self.parts = parts
        self._f, self._key, self._make_state, self._part_of = f, key, make_state, part_of
        self._states: list[dict[Any, Any]] = [{} for _ in range(parts)]

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        key = self._key(item)
        return ((self._part_of(key) % self.parts, (key, item)),)

    def work(self, part: int, piece: Any) -> Any:
        key, record = piece
        states = self._states[part]
        if key not in states:
            states[key] = self._make_state()
        return self._f(record, states[key])


class _GlobalOperator(_RecordOperator):
    kind: Kind = "global"

    def __init__(self, name: str, f: Callable[[Any, Any], Sequence[Any]], state: Any) -> None:
        super().__init__(name)
        self._f, self._state = f, state

    def work(self, part: int, piece: Any) -> Any:
        return self._f(piece, self._state)


class _ChunkedOperator:
    """Another operator over lists of records; what goes out for one chunk is at most one chunk."""

    def __init__(self, inner: ChainOperator) -> None:
        self._inner = inner
        self.name, self.kind, self.parts = inner.name, inner.kind, inner.parts

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        pieces: dict[int, list[tuple[int, Any]]] = {}
        for place, record in enumerate(item):
            ((part, piece),) = self._inner.split(record)
            pieces.setdefault(part, []).append((place, piece))
        return tuple(pieces.items())

    def work(self, part: int, piece: Any) -> Any:
        work = self._inner.work
        if self.kind == "keyed":
            return [(place, work(part, record)) for place, record in piece]
        return [(place, work(part, record)) for place, record in enumerate(piece)]

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        by_place = sorted((done for result in results for done in result), key=lambda done: done[0])
        outputs = [
            output
            for place, result in by_place
            for output in self._inner.join(item[place], [result])
        ]
        return (outputs,) if outputs else ()

    def size(self, item: Any) -> int:
        return len(item)

    def mark(self, mark: Any) -> Sequence[Any]:
        outputs = list(self._inner.mark(mark))
        return (outputs,) if outputs else ()


def stateless(name: str, f: Callable[[Any], Sequence[Any]]) -> ChainOperator:
    """An operator that gives `f(record)` for each record.

    >>> from penstock.runtime.serial import run_serially
    >>> run_serially([stateless("twice", lambda x: [x, x])], [1, 2])
    [1, 1, 2, 2]
    """
    return _StatelessOperator(name, f)


def keyed(
    name: str,
    f: Callable[[Any, Any], Sequence[Any]],
    key: Callable[[Any], Any],
    parts: int,
    make_state: Callable[[], Any],
    part_of: Callable[[Any], int] = hash,
) -> ChainOperator:
    """An operator that gives `f(record, state)`, with a state (which `f` changes) for each key.

    A key belongs to part `part_of(key) % parts`.
    """
    return _KeyedOperator(name, f, key, parts, make_state, part_of)


def global_(name: str, f: Callable[[Any, Any], Sequence[Any]], state: Any) -> ChainOperator:
    """An operator that gives `f(record, state)`, with one state, which `f` changes."""
    return _GlobalOperator(name, f, state)


def chunked(operator: ChainOperator) -> ChainOperator:
    """A plain operator (see above) that takes and gives lists of records.

    >>> from penstock.runtime.serial import run_serially
    >>> small = chunked(stateless("small", lambda x: [x] if x < 3 else []))
    >>> run_serially([small], [[1, 5, 2], [7], [0]])
    [[1, 2], [0]]
    """
    return _ChunkedOperator(operator)
