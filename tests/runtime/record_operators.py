"""Plain operators made of functions, and a run of them.

>>> def count(word, seen):
...     seen.append(word)
...     return [(word, len(seen))]
>>> words = stateless("words", str.split)
>>> counts = keyed("counts", count, key=lambda word: word, parts=4, make_state=list)
>>> runtime = Runtime([words, counts], workers=3)
>>> runtime.run(["a b a", "", "b c"])
[('a', 1), ('b', 1), ('a', 2), ('b', 2), ('c', 1)]
>>> [(meter.name, meter.records_in, meter.records_out) for meter in runtime.meters]
[('words', 3, 5), ('counts', 5, 5)]
>>> runtime.close()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.runtime import ChainOperator, Kind, Runtime

__all__ = ["Runtime", "chunked", "global_", "keyed", "stateless"]


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

    def work(self, part: int, piece: Any) -> Any:
        raise NotImplementedError


class StatelessOperator(_RecordOperator):
    def __init__(self, name: str, f: Callable[[Any], Sequence[Any]]) -> None:
        super().__init__(name)
        self._f = f

    def work(self, part: int, piece: Any) -> Any:
        return self._f(piece)


class KeyedOperator(_RecordOperator):
    kind: Kind = "keyed"

    def __init__(
        self,
        name: str,
        f: Callable[[Any, Any], Sequence[Any]],
        key: Callable[[Any], Any],
        parts: int,
        make_state: Callable[[], Any],
        part_of: Callable[[Any], int] = hash,
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


class GlobalOperator(_RecordOperator):
    kind: Kind = "global"

    def __init__(self, name: str, f: Callable[[Any, Any], Sequence[Any]], state: Any) -> None:
        super().__init__(name)
        self._f, self._state = f, state

    def work(self, part: int, piece: Any) -> Any:
        return self._f(piece, self._state)


class ChunkedOperator:
    """An operator over lists of records (chunks). The output of a chunk is at most one chunk."""

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


stateless = StatelessOperator
"""Operator that emits `f(record)` for each record."""
keyed = KeyedOperator
"""Operator that emits `f(record, state)`, with one state per key; a key is in part `part_of(key) % parts`."""
global_ = GlobalOperator
"""Operator that emits `f(record, state)`, with one state."""
chunked = ChunkedOperator
