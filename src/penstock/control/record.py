"""A run of the control machine as lines of JSON: what it was made from, and every event that it was told.

The first line is the `Opening`; each other one an event, with its name. The same lines make another
machine decide the same, to the letter: floats are written so that they read the same, also those that
JSON has no word for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from penstock import codec
from penstock.control.elastic import Elastic, Steering
from penstock.control.events import Event, Steered
from penstock.control.money import FunctionPrice, HostPrice
from penstock.control.offload_policy import Helped
from penstock.errors import CheckpointError, SettingError
from penstock.model import SLA

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
_ODD = "~float"
"""The only key of what stands for a float without end, or that is not a number."""


@dataclass(frozen=True)
class Terms:
    """Burst workers as control knew them."""

    at_most: int
    speed: float
    start_ms: int
    price: FunctionPrice


def written(elastic: Elastic) -> dict[str, Any]:
    """Settings as far as they can be written down: of a policy without a text, its name."""
    offer, terms = elastic.functions, None
    if offer is not None:
        terms = Terms(offer.at_most, offer.speed, offer.start_ms, offer.price)
    facts: dict[str, Any] = codec.to_plain(
        vars(elastic) | {"policy": elastic.policy_text, "functions": terms}
    )
    return facts


@dataclass(frozen=True)
class StepFacts:
    """A keyed step of the flow."""

    step: str
    slots: int
    merges: bool


@dataclass(frozen=True)
class Opening:
    """All that the machine of a live run is made from."""

    started_ms: float
    sla: SLA
    elastic: dict[str, Any]
    """As `written` has it."""
    steps: tuple[StepFacts, ...]
    host_start_ms: float
    warm_epochs: int
    segments: Mapping[str, Helped] = field(default_factory=dict)
    """Segments that burst workers can help."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """Steps that they cannot help, and why."""
    trigger_ms: float = 0.0
    own_policy: bool = False
    """Whether the policy was an object of the user's own, of which only the name is known."""
    live: bool = False
    """Whether the flow ran live, without epochs that control could look at."""

    def again(self, policy: str | None = None) -> Elastic:
        """The settings of the run, or the same with another policy."""
        facts = self.elastic
        if policy is None and self.own_policy:
            raise own_policy(facts["policy"])
        rich = {
            "policy": policy or facts["policy"],
            "functions": codec.from_plain(facts["functions"], Terms | None),  # type: ignore[arg-type]
            "host_price": codec.from_plain(facts["host_price"], HostPrice),
        }
        return Elastic(**facts | rich)


def own_policy(name: str) -> SettingError:
    """What to raise where a run's own policy would be needed."""
    return SettingError(
        f"the policy of the run was an object of the user's own, {name}, which is not recorded",
        hint="try a policy that has a text on its events, such as --policy switch",
    )


def opening_line(opening: Opening) -> bytes:
    """The first line of a record."""
    return codec.encode({"opening": _written(codec.to_plain(opening))})


def event_line(event: Event) -> bytes:
    """The line of an event.

    >>> from penstock.control.events import EpochDue
    >>> line = event_line(EpochDue(float("inf")))
    >>> line, event_of(line)
    (b'{"event":"EpochDue","now_ms":{"~float":"inf"}}', EpochDue(now_ms=inf))
    """
    facts = (
        {"now_ms": event.now_ms, "steering": _steering(event.steering)}
        if isinstance(event, Steered)
        else _written(codec.to_plain(event))
    )
    return codec.encode({"event": type(event).__name__} | facts)


def event_of(line: bytes) -> Event:
    """The event that a line tells."""
    facts = _read(codec.decode(line, dict))
    kind = _KINDS.get(facts.pop("event", ""))
    if kind is Steered:
        return Steered(facts["now_ms"], Steering(**facts["steering"]))
    if kind is None:
        raise CheckpointError(
            "a recorded event of a kind that is not known", hint="use a newer Penstock"
        )
    found: Event = codec.from_plain(facts, kind)
    return found


def read(lines: Iterable[bytes]) -> tuple[Opening, Iterator[Event]]:
    """What a machine was made from, and what it was told, in order."""
    rest = iter(lines)
    first = _read(codec.decode(next(rest, b"{}"), dict))
    if "opening" not in first:
        raise CheckpointError(
            "the recorded events lack their beginning",
            hint="start the query once more: the newest start is replayed",
        )
    return codec.from_plain(first["opening"], Opening), map(event_of, rest)


def _steering(steering: Steering) -> dict[str, Any]:
    policy = steering.policy
    named = {} if policy is None or isinstance(policy, str) else {"policy": type(policy).__name__}
    return steering.changes | named


def _written(value: Any) -> Any:
    """Plain values with a word for floats that JSON has none for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {_ODD: repr(value)}
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, list | tuple) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ODD}:
            return float(value[_ODD])
        return {name: _read(one) for name, one in value.items()}
    return [_read(one) for one in value] if isinstance(value, list) else value
