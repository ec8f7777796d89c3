"""A recorded run of the control machine, as lines of JSON: its settings and every event it received.

The first line is the `Opening`. Every other line is one event, with its name. Replaying the lines gives
exactly the same decisions, because floats survive the round trip, including inf and nan.
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
"""The only key of the JSON object that stands for inf, -inf or nan."""


@dataclass(frozen=True)
class Terms:
    """The terms of burst workers in the recorded run. See `WorkerTerms`."""

    at_most: int
    speed: float
    start_ms: int
    price: FunctionPrice


def written(elastic: Elastic) -> dict[str, Any]:
    """The settings as JSON values. A policy object is written as the name of its class."""
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
    """All parameters of the machine of a recorded run."""

    started_ms: float
    sla: SLA
    elastic: dict[str, Any]
    """The result of `written`."""
    steps: tuple[StepFacts, ...]
    host_start_ms: float
    warm_epochs: int
    segments: Mapping[str, Helped] = field(default_factory=dict)
    """Segments that burst workers can help."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """Steps that burst workers cannot help, each with the reason."""
    trigger_ms: float = 0.0
    own_policy: bool = False
    """Whether the policy was a user's object. Only its class name is recorded then."""
    live: bool = False
    """Whether the flow ran live. Control received time slots instead of epochs then."""

    def again(self, policy: str | None = None) -> Elastic:
        """The settings of the run, with another policy if `policy` is not None."""
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
    """The error for a replay that needs a policy object of the user, which is not recorded."""
    return SettingError(
        f"the run used a custom policy object, {name}, which is not recorded",
        hint="replay it with a built-in policy, such as --policy switch",
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
    """The event in a line; the inverse of `event_line`."""
    facts = _read(codec.decode(line, dict))
    kind = _KINDS.get(facts.pop("event", ""))
    if kind is Steered:
        return Steered(facts["now_ms"], Steering(**facts["steering"]))
    if kind is None:
        raise CheckpointError(
            "the recorded events contain an unknown kind of event", hint="use a newer Penstock"
        )
    event: Event = codec.from_plain(facts, kind)
    return event


def read(lines: Iterable[bytes]) -> tuple[Opening, Iterator[Event]]:
    """The parameters of a recorded machine, and its events in order."""
    rest = iter(lines)
    first = _read(codec.decode(next(rest, b"{}"), dict))
    if "opening" not in first:
        raise CheckpointError(
            "the first line of the recorded events is missing",
            hint="start the query again: a replay uses the newest start",
        )
    return codec.from_plain(first["opening"], Opening), map(event_of, rest)


def _steering(steering: Steering) -> dict[str, Any]:
    policy = steering.policy
    named = {} if policy is None or isinstance(policy, str) else {"policy": type(policy).__name__}
    return steering.changes | named


def _written(value: Any) -> Any:
    """The value with floats that JSON cannot hold replaced by `{"~float": ...}`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {_ODD: repr(value)}
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    return [_written(item) for item in value] if isinstance(value, list | tuple) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ODD}:
            return float(value[_ODD])
        return {name: _read(item) for name, item in value.items()}
    return [_read(item) for item in value] if isinstance(value, list) else value
