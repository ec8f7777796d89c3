"""The serial run in a plain loop: the expected output of any run of the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.runtime.operators import ChainOperator, Mark


def run_serially(operators: Sequence[ChainOperator], items: Iterable[Any]) -> list[Any]:
    """Run each item through the whole chain before the next one starts.

    >>> from tests.runtime.record_operators import global_, stateless
    >>> total = global_("total", lambda x, state: state.append(x) or [sum(state)], [])
    >>> run_serially([stateless("odd", lambda x: [x] * (x % 2)), total], range(6))
    [1, 4, 9]
    """
    return [output for item in items for output in _through(operators, item)]


def _through(operators: Sequence[ChainOperator], item: Any) -> Iterator[Any]:
    if not operators:
        yield item
        return
    operator, behind = operators[0], operators[1:]
    if isinstance(item, Mark):
        outputs: Sequence[Any] = [*operator.mark(item), item]
    else:
        pieces = operator.split(item) if operator.kind == "keyed" else ((0, item),)
        outputs = operator.join(item, [operator.work(part, piece) for part, piece in pieces])
    for output in outputs:
        yield from _through(behind, output)
