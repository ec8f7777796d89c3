"""Invalid settings are refused before anything is started, with the fault and the cure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import penstock as ps
from penstock.control.elastic import Elastic
from penstock.errors import FlowError, SettingError
from penstock.flows.start import (
    check_delivery,
    for_one_host,
    host_counts,
    most_hosts,
    sink_of,
    with_errors,
)
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
def test_invalid_settings_of_hosts_are_refused(bad: dict[str, Any]) -> None:
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


def test_elastic_takes_all_settings_with_their_defaults() -> None:
    signature = inspect.signature(ps.Flow.elastic).parameters
    settings = {field.name: field for field in fields(Elastic)}
    assert list(signature) == ["self", *settings]
    flow = ps.flow(ps.rate(100))
    assert flow.elastic().elasticity == Elastic()
    assert all(f"`{name}`" in (ps.Flow.elastic.__doc__ or "") for name in settings)
    for name, value in {
        "policy": "static(2)",
        "at_least": 2,
        "at_most": 9,
        "margin": 0.1,
        "alert": "300ms",
        "delta": "50ms",
        "dry_run": True,
        "functions": ps.LocalFunctions(at_most=3),
        "patience": "1 minute",
        "merge_cost": 2.0,
        "warm_for": 0.0,
        "host_price": ps.HostPrice(1.0),
    }.items():
        given: dict[str, Any] = {name: value}
        assert flow.elastic(**given).elasticity == Elastic(**given)
    with pytest.raises(TypeError, match="at_mots"):
        flow.elastic(at_mots=3)  # type: ignore[call-arg]


WRONG: Any = "wrong"
FLOW = ps.flow(ps.rate(100, partitions=2)).key_by("key").aggregate(n=ps.count(), name="clicks")


@pytest.mark.parametrize(
    ("start", "fault", "cure"),
    [
        (lambda: host_counts(FLOW.plan, 0), "step clicks has 0 hosts", "1 or more"),
        (lambda: host_counts(FLOW.plan, {"views": 2}), "does not have: views", "use clicks"),
        (lambda: check_delivery("twice"), "unknown delivery 'twice'", '"transactional"'),
        (lambda: with_errors(FLOW.plan, WRONG), "unknown on_error 'wrong'", '"dead_letter"'),
        (lambda: sink_of(FLOW), "has no sink", "ps.to"),
        (lambda: most_hosts(FLOW.elastic(), FLOW.plan, {}), "elastic() needs an SLA", ".sla("),
        (lambda: for_one_host(FLOW.elastic(), FLOW.plan, {}), "cannot be elastic", "remove"),
        (lambda: FLOW.start(ps.collect(), mode=WRONG), "unknown mode 'wrong'", '"live"'),
        (
            lambda: FLOW.start(ps.collect(), couriers=2),
            "couriers is for live flows",
            "leave it out",
        ),
        (lambda: FLOW.key_by("n", slots=0), "slots is 0", "1 to 32768"),
        (lambda: FLOW.key_by("m"), "no column 'm' to key by", "use one of key, n"),
        (lambda: FLOW.join(FLOW, on=[]), "no key column", 'on="id"'),
    ],
)
def test_a_start_states_the_fault_and_the_cure(
    start: Callable[[], object], fault: str, cure: str
) -> None:
    with pytest.raises((FlowError, SettingError)) as caught:
        start()
    assert fault in caught.value.message
    assert cure in caught.value.hint
