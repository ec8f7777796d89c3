"""The steps that workers take on what they share, and what each step does."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.runtime.atomics import EMPTY

NOWHERE = 0
"""The place of a step that makes a shared object; its answer is the object's place."""


class Step(NamedTuple):
    """An atomic step that a worker takes: on which object, which effect, with which arguments."""

    place: int
    effect: str
    given: tuple[Any, ...]


def effect_of(step: Step, value: Any) -> tuple[Any, Any]:
    """What an object holds after a step, and the step's answer. Pure."""
    given = step.given
    match step.effect:
        case "load":
            return value, value
        case "store":
            return given[0], None
        case "fetch_add":
            return value + given[0], value
        case "test_and_set":
            return True, value
        case "clear":
            return False, None
        case "load_cell":
            return value, value[given[0]]
        case "store_cell":
            return (*value[: given[0]], given[1], *value[given[0] + 1 :]), None
        case "put":
            return (*value, given[0]), None
        case "take":
            return (value[1:], value[0]) if value else (value, EMPTY)
        case "pop":
            return (value[:-1], value[-1]) if value else (value, EMPTY)
        case "remove":
            return tuple(each for each in value if each != given[0]), given[0] in value
        case "wait":
            return False, None
        case "ring":
            assert not value, "a bell is rung twice"
            return True, None
        case "peek":
            return value, value[0] if value else EMPTY
        case "length":
            return value, len(value)
        case "enter" | "touch":
            inside, due = value
            assert not inside, f"{given[0]} enters where another is"
            assert due, f"{given[0]} comes where nothing is due"
            assert given[0] == due[0], f"{given[0]} comes where {due[0]} is due"
            return (step.effect == "enter", due[1:]), None
        case "leave":
            return (False, value[1]), None
    raise ValueError(f"no effect {step.effect}")
