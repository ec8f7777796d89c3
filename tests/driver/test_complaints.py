"""Whom couriers complain of, and who is given up for it."""

from __future__ import annotations

import pytest

from penstock.driver.complaints import Complaint, Complaints


def complained(
    *runs: tuple[int, int], incarnation: str = "a", host: str = "sum/1"
) -> list[Complaint]:
    return [Complaint(host, incarnation, epoch, run) for epoch, run in runs]


def test_many_complaints_of_one_run_are_one() -> None:
    assert Complaints().judge(complained(*[(5, 0)] * 8)) == []


@pytest.mark.parametrize("again", [(5, 1), (6, 0), (14, 2)])
def test_a_second_run_that_complains_of_an_incarnation(again: tuple[int, int]) -> None:
    complaints = Complaints()
    complaints.judge(complained((5, 0)))
    complaints.judge([])
    assert complaints.judge(complained(again)) == ["sum/1"]


def test_complaints_are_forgotten() -> None:
    complaints = Complaints()
    complaints.judge(complained((5, 0)))
    assert complaints.judge(complained((15, 0))) == []


def test_another_incarnation_and_another_host_have_a_chance_of_their_own() -> None:
    complaints = Complaints()
    complaints.judge(complained((5, 0)))
    assert complaints.judge(complained((5, 1), incarnation="b")) == []
    assert complaints.judge(complained((5, 2), host="sum/0")) == []


def test_who_was_given_up_is_avoided_for_a_while() -> None:
    complaints = Complaints()
    complaints.judge(complained((5, 0)))
    assert complaints.avoided(5) == set()
    complaints.judge(complained((5, 1)))
    assert complaints.avoided(5) == complaints.avoided(54) == {"sum/1"}
    assert complaints.avoided(55) == set()
