"""Complaints of couriers, and the hosts that are given up for them."""

from __future__ import annotations

import pytest

from penstock.driver.complaints import Complaint, Complaints

HERE = "10.0.0.7"


def complained(
    *runs: tuple[int, int], incarnation: str = "a", host: str = "sum/1"
) -> list[Complaint]:
    return [Complaint(host, HERE, incarnation, epoch, run) for epoch, run in runs]


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


def test_who_was_given_up_is_avoided_there_for_a_while() -> None:
    complaints = Complaints()
    complaints.judge(complained((5, 0)))
    assert not complaints.avoids("sum/1", HERE, 5)
    complaints.judge(complained((5, 1)))
    assert complaints.avoids("sum/1", HERE, 5)
    assert complaints.avoids("sum/1", HERE, 54)
    assert not complaints.avoids("sum/1", HERE, 55)
    assert not complaints.avoids("sum/1", "10.0.0.8", 5), "elsewhere it may be reached"
    assert not complaints.avoids("sum/0", HERE, 5)
    assert complaints.places("sum/1") == {HERE}


def test_who_is_given_up_again_and_again_is_tried_less_and_less() -> None:
    """A link that never heals must not cost two runs every fifty epochs."""
    complaints, epoch, waits = Complaints(), 0, list[int]()
    for incarnation in "abcdefghijk":
        complaints.judge(complained((epoch, 0), incarnation=incarnation))
        complaints.judge(complained((epoch, 1), incarnation=incarnation))
        began = epoch
        while complaints.avoids("sum/1", HERE, epoch):
            epoch += 1
        waits.append(epoch - began)
    assert waits[:4] == [50, 100, 200, 400]
    assert max(waits) == waits[-1] == 3_200
