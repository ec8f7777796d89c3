"""Progress of treatments: every state and every change of the transition table."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from penstock.control.events import StepPlacement
from penstock.control.realize.course import TRANSITIONS, Change, Course, State
from penstock.control.treat.decision import Treatment
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId

A, B = HostId("sum/0"), HostId("sum/1")
OUT = Treatment("scale_out", (1,), A, B, "")
MOVE = Treatment("balance", (1,), A, B, "")


def state(course: Course) -> str:
    """The present state, without the type checker's narrowing from earlier assertions."""
    return course.state


def placed(*owner: int, pending: int = 0) -> StepPlacement:
    return StepPlacement((A, B), np.array(owner), pending)


def test_every_state_is_reached_and_left() -> None:
    states = set(get_args(State))
    assert {state for state, _ in TRANSITIONS} == states == set(TRANSITIONS.values())
    assert {change for _, change in TRANSITIONS} == set(get_args(Change))


def test_a_treatment_with_new_hosts_waits_moves_and_is_done() -> None:
    course, before = Course(StepId("sum")), placed(0, 0)
    course.begin([OUT], 0.0, 50.0, None, before)
    assert (state(course), course.may_revise) == ("waiting", True)
    assert course.begin([OUT, MOVE], 500.0, 90.0, None, before), "it replaces the first"
    assert course.treating is not None
    assert (course.treating.since_ms, course.treating.latency_ms) == (0.0, 90.0)
    assert course.end(placed(0, 0, pending=1), 600.0) is None
    assert state(course) == "waiting"
    course.follow(placed(0, 1, pending=1), 700.0)
    assert (state(course), course.may_revise) == ("moving", False)
    assert course.end(placed(0, 1), 800.0) == "done"
    assert state(course) == "idle"
    assert not course.treating
    assert course.end(placed(0, 1), 900.0) is None


def test_treatments_without_new_hosts_move_at_once_and_cannot_be_revised() -> None:
    course = Course(StepId("sum"))
    course.begin([MOVE], 0.0, 0.0, None, placed(0, 0))
    assert (state(course), course.may_revise) == ("moving", False)
    assert not Course(StepId("sum"), revises=False).may_revise


def test_treatments_without_progress_are_given_up() -> None:
    for begins in (True, False):
        course = Course(StepId("sum"), host_start_ms=1_000.0)
        if begins:
            course.begin([OUT], 0.0, 0.0, None, placed(0, 0))
        for now_ms, pending in ((0.0, 3), (900.0, 3), (1_000.0, 2), (1_900.0, 2)):
            assert course.end(placed(0, 0, pending=pending), now_ms) is None
        assert state(course) == ("waiting" if begins else "adrift")
        assert course.end(placed(0, 0, pending=2), 2_100.0) == "given up"
        assert state(course) == "idle"


def test_slots_that_stray_arrive() -> None:
    course = Course(StepId("sum"))
    course.follow(placed(0, 0, pending=2), 0.0)
    assert state(course) == "adrift"
    assert course.treating is None
    assert course.end(placed(0, 0), 100.0) == "done"
    assert state(course) == "idle"


def test_an_impossible_change_lists_earlier_changes() -> None:
    course = Course(StepId("sum"))
    course.begin([OUT], 5.0, 0.0, None, placed(0, 0))
    course.follow(placed(0, 1), 70.0)
    with pytest.raises(ProtocolError, match="'begun' is not possible in state 'moving'") as error:
        course.begin([OUT], 80.0, 0.0, None, placed(0, 1))
    assert "5 ms: idle, begun; 70 ms: waiting, moved" in error.value.hint
    assert course.treating is not None
    assert state(course) == "moving"
