"""The atomic steps of workers on shared objects, and the effect of each step."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.runtime.atomics import EMPTY

NOWHERE = 0
"""The place of a step that creates a shared object; its answer is the object's place."""


class Step(NamedTuple):
    """An atomic step of a worker: an effect on the object at a place, with arguments."""

    place: int
    effect: str
    args: tuple[Any, ...]


def effect_of(step: Step, value: Any) -> tuple[Any, Any]:
    """The value of an object after a step, and the step's answer. Pure."""
    args = step.args
    match step.effect:
        case "load":
            return value, value
        case "store":
            return args[0], None
        case "fetch_add":
            return value + args[0], value
        case "test_and_set":
            return True, value
        case "clear":
            return False, None
        case "load_cell":
            return value, value[args[0]]
        case "store_cell":
            return (*value[: args[0]], args[1], *value[args[0] + 1 :]), None
        case "put":
            return (*value, args[0]), None
        case "take":
            return (value[1:], value[0]) if value else (value, EMPTY)
        case "pop":
            return (value[:-1], value[-1]) if value else (value, EMPTY)
        case "remove":
            return tuple(each for each in value if each != args[0]), args[0] in value
        case "wait":
            return False, None
        case "ring":
            assert not value, "a bell was rung twice"
            return True, None
        case "peek":
            return value, value[0] if value else EMPTY
        case "length":
            return value, len(value)
        case "enter" | "touch":
            inside, due = value
            assert not inside, f"{args[0]} enters where another is"
            assert due, f"{args[0]} comes where nothing is due"
            assert args[0] == due[0], f"{args[0]} comes where {due[0]} is due"
            return (step.effect == "enter", due[1:]), None
        case "leave":
            return (False, value[1]), None
    raise ValueError(f"unknown effect {step.effect}")
