"""Missing samples: vitals are invalid without them, and interpolated counts fill the gap later."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Vitals, Work
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId

A, B = HOSTS = (HostId("sum/0"), HostId("sum/1"))
WORK = {host: Work(10, 10.0) for host in HOSTS}
OWNER = np.array([0, 0, 1, 1])
STEP = StepId("sum")


def examiner(slots: int = 4) -> Examiner:
    return Examiner(STEP, slots, window_ms=1000)


def same(left: Vitals, right: Vitals) -> None:
    for name in ("rate", "slot_latency_ms", "latency_ms", "backlog", "peak_rate", "service_rate"):
        assert getattr(left, name) == pytest.approx(getattr(right, name), nan_ok=True), name


def test_nothing_is_valid_before_the_first_count() -> None:
    vitals = examiner().vitals(0, HOSTS, OWNER)
    assert not vitals.valid
    assert vitals.missing == "nothing has been counted yet"
    assert np.isnan(vitals.latency_ms).all()
    assert vitals.rate.tolist() == [0, 0, 0, 0]


def test_a_missing_count_makes_vitals_invalid_until_it_is_there_again() -> None:
    examined = examiner()
    examined.sample(1, [5, 5, 5, 5], [0, 0, 0, 0], OWNER, HOSTS, WORK)
    assert examined.vitals(100, HOSTS, OWNER).valid
    examined.sample(2, [9, -1, np.nan, 9], [0, 0, 0, 0], OWNER, HOSTS, WORK)
    vitals = examined.vitals(200, HOSTS, OWNER)
    assert (vitals.valid, vitals.missing) == (False, "counts of slots 1-2")
    examined.sample(3, [9, 9, 9, 9], [0, 0, 0, -1], OWNER, HOSTS, WORK)
    assert examined.vitals(300, HOSTS, OWNER).missing == "counts of slots 3"
    examined.sample(4, [9, 9, 9, 9], [0, 0, 0, 0], OWNER, HOSTS, WORK)
    assert examined.vitals(400, HOSTS, OWNER).valid


def test_the_useful_time_of_every_owner_is_needed() -> None:
    examined = examiner(slots=1)
    examined.sample(1, [5], [0], [0], HOSTS, {B: Work(1, 1.0)})
    vitals = examined.vitals(100, HOSTS, [0])
    assert (vitals.valid, vitals.missing) == (False, "useful time of sum/0")
    examined.sample(2, [5], [0], [0], HOSTS, {A: Work(1, 1.0)})
    assert examined.vitals(200, HOSTS, [0]).valid, "sum/1 owns no slots"
    examined.sample(3, [5], [0], [1], HOSTS, {A: Work(1, 1.0)})
    assert examined.vitals(300, HOSTS, [1]).missing == "useful time of sum/1"
    examined.forget_host(B)
    assert examined.vitals(300, [A], [0]).valid


def test_an_idle_host_is_not_missing() -> None:
    examined = examiner(slots=1)
    examined.sample(1, [0], [0], [0], HOSTS, {A: Work(0, 0.0)})
    assert examined.vitals(100, HOSTS, [0]).valid


@pytest.mark.parametrize("seed", range(20))
def test_interpolated_counts_give_the_same_vitals(seed: int) -> None:
    random = np.random.default_rng(seed)
    many = 60
    arrived = np.cumsum(random.poisson(8, (many, 4)), axis=0).astype(float)
    completed = np.vstack([np.zeros((3, 4)), arrived[:-3]])
    owners = random.integers(0, 2, (many, 4))
    lost = random.random((2, many, 4)) < 0.2
    lost[:, -1] = False
    lossy, whole = examiner(), examiner()
    times = np.arange(many + 1)
    for n, counts in enumerate((arrived, completed)):
        for slot in range(4):
            known = np.concatenate([[0], 1 + np.flatnonzero(~lost[n, :, slot])])
            values = np.concatenate([[0], counts[:, slot]])
            counts[:, slot] = np.interp(times, known, values[known])[1:]
    for m in range(many):
        whole.sample(m + 1, arrived[m], completed[m], owners[m], HOSTS, WORK)
        heard = np.where(lost[:, m], -1, (arrived[m], completed[m]))
        lossy.sample(m + 1, heard[0], heard[1], owners[m], HOSTS, WORK)
        if not lost[:, m].any():
            end = 100.0 * (m + 1)
            same(lossy.vitals(end, HOSTS, OWNER), whole.vitals(end, HOSTS, OWNER))
    assert lossy.vitals(100.0 * many, HOSTS, OWNER).valid


def test_missing_time_slots_are_interpolated() -> None:
    examined, whole = examiner(slots=1), examiner(slots=1)
    for m in range(1, 21):
        whole.sample(m, [6.0 * m], [6.0 * (m - 1)], [0], HOSTS, WORK)
        if m in (1, 9, 10, 20):
            examined.sample(m, [6.0 * m], [6.0 * (m - 1)], [0], HOSTS, WORK)
    vitals = examined.vitals(2000, HOSTS, [0])
    assert vitals.valid
    assert vitals.rate.tolist() == pytest.approx([60.0])
    assert vitals.latency_ms[0] == pytest.approx(100.0)
    assert vitals.backlog == pytest.approx(whole.vitals(2000, HOSTS, [0]).backlog)


def test_a_pause_of_days_is_interpolated_quickly() -> None:
    examined = examiner(slots=1)
    examined.sample(1, [10], [0], [0], HOSTS, WORK)
    examined.sample(10_000_000, [10], [10], [0], HOSTS, WORK)
    vitals = examined.vitals(1e9, HOSTS, [0])
    assert vitals.valid
    assert vitals.backlog.tolist() == pytest.approx([0.0], abs=1e-6)
    assert vitals.rate.tolist() == [0.0]


def test_a_slot_without_counts_does_not_fill_the_memory() -> None:
    examined = examiner(slots=2)
    for m in range(1, 1500):
        examined.sample(m, [10 * m, -1], [10 * m, -1], [0, 1], HOSTS, WORK)
    assert len(examined._samples._held) <= 256
    examined.sample(1500, [15_000, 15_000], [15_000, 15_000], [0, 1], HOSTS, WORK)
    vitals = examined.vitals(150_000, HOSTS, [0, 1])
    assert vitals.valid
    assert vitals.rate == pytest.approx([100.0, 100.0])
    assert vitals.latency_ms == pytest.approx([0.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("again", [3, 2])
def test_a_late_or_second_sample_is_refused(again: int) -> None:
    examined = examiner(slots=1)
    examined.sample(3, [5], [0], [0], HOSTS, WORK)
    with pytest.raises(ProtocolError, match=f"time slot {again} after time slot 3"):
        examined.sample(again, [6], [0], [0], HOSTS, WORK)
    examined.sample(4, [6], [0], [0], HOSTS, WORK)
    assert examined.vitals(400, HOSTS, [0]).backlog.tolist() == [6.0]


def test_a_count_that_decreases_is_refused() -> None:
    examined = examiner()
    examined.sample(1, [5, 5, 5, 5], [0, 0, 0, 0], OWNER, HOSTS, WORK)
    with pytest.raises(ProtocolError, match="slot 2 of step sum decreased in time slot 2"):
        examined.sample(2, [5, 5, 4, 5], [0, 0, 0, 0], OWNER, HOSTS, WORK)


def test_counts_of_other_slots_are_refused() -> None:
    with pytest.raises(ProtocolError, match="4 slots of step sum"):
        examiner().sample(1, [5, 5], [0, 0], OWNER, HOSTS, WORK)
    with pytest.raises(ProtocolError, match="4 slots of step sum"):
        examiner().arriving(100, [5, 5, 5, 5], 1)


def test_an_epoch_with_a_missing_count_is_refused() -> None:
    with pytest.raises(ProtocolError, match="missing or negative"):
        examiner(slots=1).arriving(100, [[-1.0]], 1)
    with pytest.raises(ProtocolError, match="missing or negative"):
        examiner(slots=1).epoch(100, [np.nan], [0], HOSTS, WORK)
