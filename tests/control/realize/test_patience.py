"""How long an epoch waits for hosts that are about to come up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.realize.course import Treating, patience_ms
from penstock.control.treat.decision import Kind, Treatment, new_host
from penstock.model import StepId


def treated(kind: Kind = "scale_out") -> Treating:
    """Treatments that divide a step's two slots, of 1,000 records/s each, between two hosts."""
    vitals = Vitals.even(StepId("sum"), [1000.0, 1000.0], 1, service_rate=1000.0)
    target = new_host(1) if kind == "scale_out" else vitals.hosts[0]
    out = Treatment(kind, (1,), vitals.hosts[0], target, "")
    return Treating((out,), 0.0, 0.0, vitals)


def test_an_epoch_waits_for_as_long_as_the_new_host_saves() -> None:
    # 2,000 records arrive in a second: two seconds of work for one host, one second for two.
    assert patience_ms(treated(), 0.0, 1_000.0, usual_start_ms=1_500.0) == pytest.approx(1_000.0)


def test_a_host_that_takes_longer_than_it_saves_is_not_waited_for() -> None:
    assert patience_ms(treated(), 0.0, 1_000.0, usual_start_ms=9_000.0) == 0.0
    assert patience_ms(treated(), 0.0, 50.0, usual_start_ms=0.0) == 0.0


def test_there_is_nothing_to_wait_for() -> None:
    assert patience_ms(treated("balance"), 0.0, 1_000.0, usual_start_ms=0.0) == 0.0
    assert patience_ms(None, 0.0, 1_000.0, usual_start_ms=0.0) == 0.0


@pytest.mark.filterwarnings("error")
def test_hosts_with_unknown_speed_are_not_waited_for() -> None:
    """No host has worked yet, so the time that a new one saves is unknown."""
    was = treated()
    assert was.vitals is not None
    unknown = replace(was.vitals, service_rate=np.full(1, np.nan))
    assert patience_ms(replace(was, vitals=unknown), 0.0, 1_000.0, usual_start_ms=0.0) == 0.0


def test_hosts_that_are_much_later_than_usual_are_not_waited_for() -> None:
    asked_ms = treated().since_ms
    soon = patience_ms(treated(), asked_ms, asked_ms + 1_000.0, usual_start_ms=900.0)
    late = patience_ms(treated(), asked_ms, asked_ms + 9_000.0, usual_start_ms=900.0)
    assert soon > 0.0
    assert late == 0.0
