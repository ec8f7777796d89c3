"""What a courier tells of the rows that it handed to functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from penstock.offload.backends.backend import Usage


@dataclass(frozen=True)
class Offloaded:
    """What one courier handed to functions of one segment in one epoch, and what came of it.

    >>> told = Offloaded("sum", rows=90, records=7, invocations=3, failures={"timeout": 1}, returned=30)
    >>> Offloaded.from_json(told.to_json()) == told
    True
    """

    segment: str
    """The id of its last step."""
    rows: int = 0
    """That were to go to functions."""
    records: int = 0
    """That functions gave for the others: partial states of the keyed step, or rows."""
    invocations: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """Why invocations gave no answer that could be used -> how many of them."""
    returned: int = 0
    """Rows that the courier did itself then."""
    wait_ms: int = 0
    """From the first request until the last answer had come, or was given up."""

    def to_json(self) -> list[Any]:
        return list(astuple(self))

    @staticmethod
    def from_json(facts: Sequence[Any]) -> Offloaded:
        return Offloaded(*facts)


@dataclass(frozen=True)
class Routed:
    """What came by where rows leave for functions."""

    rows: int
    combined: bool
    """Whether the courier made fewer records of those that stayed."""


def told_of_functions(
    offloaded: Sequence[Offloaded], used: Usage, routed: Mapping[str, Routed]
) -> dict[str, Any]:
    """What functions add to a courier's report; nothing if there were none.

    `used` is what was taken from the courier's way to functions (see `Invoker.taken`).
    """
    facts: dict[str, Any] = {}
    if offloaded:
        facts["offloaded"] = [one.to_json() for one in offloaded]
    if routed:
        facts["routed"] = {name: [one.rows, one.combined] for name, one in routed.items()}
    if used != Usage():
        facts["used"] = {name: number for name, number in asdict(used).items() if number}
    return facts
