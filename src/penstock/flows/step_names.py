"""Names of keyed steps: which are allowed, which are automatic, and how those of a checkpoint match a flow's.

A step's name is its identity in a checkpoint. Without one it gets an automatic name, its kind and its place
among the keyed steps: "aggregate-1", "join-2". Stateless steps do not count: adding one changes no name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import CheckpointError, FlowError

_KINDS = ("aggregate", "distinct", "join", "map", "process", "source", "top", "window")
_AUTOMATIC = re.compile(rf"({'|'.join(_KINDS)})-\d+")
_RESERVED = ("source", "output")
"""The two ends of a flow in `explain`."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
"""A name is a folder of the checkpoint and the first part of a host's id, "clicks/0"."""


def checked_name(name: object) -> str:
    """A user's name for a step; raises if it cannot be one.

    >>> checked_name("clicks")
    'clicks'
    >>> checked_name("clicks per user")
    Traceback (most recent call last):
    ...
    penstock.errors.FlowError: 'clicks per user' cannot be the name of a step. What to do: use 1 to 64 \
letters, digits, _ and -, not beginning with -, such as "clicks"
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise FlowError(
            f"{name!r:.100} cannot be the name of a step",
            hint='use 1 to 64 letters, digits, _ and -, not beginning with -, such as "clicks"',
        )
    if name in _RESERVED or _AUTOMATIC.fullmatch(name):
        raise FlowError(
            f"the name {name!r} is reserved: Penstock gives such names itself",
            hint='choose another, such as "clicks", or leave the name out',
        )
    return name


def is_automatic(name: str, kind: str) -> bool:
    """Whether a step of a kind got its name from Penstock.

    >>> is_automatic("join-2", "join"), is_automatic("orders", "join")
    (True, False)
    """
    return re.fullmatch(rf"{re.escape(kind)}-\d+", name) is not None


def matched(
    uri: str, before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Name in the checkpoint -> name in the flow, for each keyed step; raises if they do not match.

    Both are facts as `flow.json` has them, in the order of the flow. If the names are the same, they match.
    If not, a name that a user has given matches itself only, as the state of a step is nobody else's. Steps
    with automatic names match the remaining steps of the flow one by one, in order, if those are of the same
    kinds. So a step may get a name later, and checkpoints open whose automatic names counted all steps.

    >>> old = [{"id": "aggregate-2"}, {"id": "join-4"}]
    >>> matched("ck", old, [{"id": "aggregate-1"}, {"id": "orders", "kind": "join"}])
    {'aggregate-2': 'aggregate-1', 'join-4': 'orders'}
    """
    old, new = [step["id"] for step in before], [step["id"] for step in now]
    if set(old) == set(new):
        return {name: name for name in old}
    names = {step["id"]: step["id"] for step in before if not is_automatic(step["id"], _kind(step))}
    if gone := [name for name in names if name not in new]:
        raise _refusal(uri, old, new, f'name the step again, as in name="{gone[0]}"')
    rest = [step for step in before if step["id"] not in names]
    heirs = [step for step in now if step["id"] not in names]
    if [_kind(step) for step in rest] != [_kind(step) for step in heirs]:
        raise _refusal(uri, old, new, "use the same keyed steps in the same order")
    return names | {a["id"]: b["id"] for a, b in zip(rest, heirs, strict=True)}


def _refusal(uri: str, old: list[str], new: list[str], cure: str) -> CheckpointError:
    return CheckpointError(
        f"{uri} has the state of the keyed steps {', '.join(old) or 'none'}, but the flow has "
        f"{', '.join(new) or 'none'}",
        hint=f"{cure}, or start the changed flow from a new checkpoint folder",
    )


def _kind(step: Mapping[str, Any]) -> str:
    """The kind of a step. Earlier releases did not write it: all names were automatic."""
    kind = step.get("kind")
    return str(step["id"]).rsplit("-", 1)[0] if kind is None else str(kind)
