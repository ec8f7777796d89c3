"""Which worklist and which reorder buffer an operator gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from penstock.errors import SettingError
from penstock.runtime.atomics import Atomics
from penstock.runtime.operators import ChainOperator
from penstock.runtime.reorder import LockBased, NonBlocking, Reorder, Unordered
from penstock.runtime.worklists import GlobalWorklist, HybridQueue, SharedWorklist, Worklist
from penstock_bench.ordered.rival_queues import PartitionedQueue, SharedQueue

QueueKind = Literal["hybrid", "partitioned", "shared"]
ReorderKind = Literal["nonblocking", "lock", "none"]

_KEYED: dict[str, Callable[[int, Atomics], Worklist]] = {
    "hybrid": HybridQueue,
    "partitioned": PartitionedQueue,
    "shared": SharedQueue,
}


def worklist_for(operator: ChainOperator, queue: QueueKind, atomics: Atomics) -> Worklist:
    """The worklist of an operator; `queue` says which one keyed operators get.

    >>> from penstock.runtime.operators import keyed
    >>> operator = keyed("count", lambda x, state: [], key=int, parts=8, make_state=dict)
    >>> type(worklist_for(operator, "hybrid", Atomics())).__name__
    'HybridQueue'
    """
    if queue not in _KEYED:
        raise SettingError(f"there is no queue {queue!r}", hint=f"one of {', '.join(_KEYED)}")
    if operator.kind == "keyed":
        return _KEYED[queue](operator.parts, atomics)
    return GlobalWorklist(atomics) if operator.kind == "global" else SharedWorklist(atomics)


def reorder_for(
    operator: ChainOperator, reorder: ReorderKind, size: int, atomics: Atomics
) -> Reorder:
    """What puts the outputs of an operator in order; `size` is that of a bounded buffer."""
    kinds = get_args(ReorderKind)
    if reorder not in kinds:
        raise SettingError(f"there is no reordering {reorder!r}", hint=f"one of {', '.join(kinds)}")
    if operator.kind == "global" or reorder == "none":
        return Unordered(atomics)
    return LockBased(atomics) if reorder == "lock" else NonBlocking(size, atomics)
