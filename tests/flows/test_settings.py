"""Settings that make no sense are refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.elastic import Elastic
from penstock.errors import FlowError, SettingError
from penstock.model import SLA
from penstock.settings import Settings


@pytest.mark.parametrize(
    "bad",
    [
        {"host_cores": 0},
        {"host_parts": -1},
        {"chunk_rows": 0},
        {"schedule": "fifo"},
    ],
)
def test_what_a_host_could_not_run_with_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="use"):
        Settings(**bad)


@pytest.mark.parametrize(
    ("bad", "fault", "cure"),
    [
        ({"host_cores": 0}, "host_cores is 0", "use 1 or more"),
        ({"host_lost_ms": 600}, "host_lost_ms is 600, less than two heartbeats", "ten times"),
        ({"host_staged_mb": 0}, "host_staged_mb is 0", "more than 0"),
        ({"live_pause_ms": -1}, "live_pause_ms is -1", "more than 0"),
        ({"host_executors": "mine"}, "host_executors is 'mine'", '"own", "shared" or None'),
        ({"host_executor_mb": 512}, "host_executor_mb is 512", "more than 512"),
        ({"ports": "9-1"}, "'9-1' is not a port", "20000-20099"),
        ({"schedule": "fifo"}, "unknown schedule 'fifo'", "ct, lp, et, qst"),
    ],
)
def test_an_error_states_the_fault_and_the_cure(bad: dict[str, Any], fault: str, cure: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings(**bad)
    assert fault in caught.value.message
    assert cure in caught.value.hint


@pytest.mark.parametrize(
    ("bad", "fault", "cure"),
    [
        ({"at_least": 5, "at_most": 4}, "at_least is 5 and at_most is 4", "1 or more"),
        ({"margin": 1.0}, "margin is 1", "less than 1"),
        ({"delta": "0ms"}, "delta is '0ms'", "100ms"),
        ({"functions_at_most": 3}, "the flow has no functions", "LocalFunctions"),
        ({"warm_for": -1.0}, "warm_for is -1", "0 or more"),
        ({"policy": "magic"}, "unknown policy 'magic'", "switch(0.2)"),
    ],
)
def test_an_elastic_flow_states_the_fault_and_the_cure(
    bad: dict[str, Any], fault: str, cure: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Elastic(**bad).bounds(SLA(1000, 1000))
    assert fault in caught.value.message
    assert cure in caught.value.hint


def test_an_sla_states_the_fault_and_the_cure() -> None:
    with pytest.raises(FlowError, match=r"latency of 0 ms over 10 ms.*above zero"):
        SLA(0, 10)
