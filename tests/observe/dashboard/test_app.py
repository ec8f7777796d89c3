from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock import codec
from penstock.control.elastic import Steering
from penstock.errors import SettingError
from penstock.observe.dashboard.app import STATIC, dashboard_app
from penstock.observe.recording import KeptRecording, Recording
from penstock.observe.what_if import Version, WhatIf
from tests.observe.dashboard.burst import START_MS, Growing, NotedOrders, burst

TOKEN = "a-token-of-16-ch"
WITH_TOKEN = {"authorization": f"Bearer {TOKEN}"}
BASE = "http://localhost"


@pytest.fixture
def orders() -> NotedOrders:
    return NotedOrders()


@pytest.fixture
def running(orders: NotedOrders) -> Iterator[TestClient]:
    """A dashboard of a query in its 90th second."""
    app = dashboard_app(Growing(burst(), lambda: 90.0), orders, TOKEN)
    with TestClient(app, BASE) as client:
        yield client


@pytest.fixture
def ended() -> Iterator[TestClient]:
    with TestClient(dashboard_app(burst(30)), BASE) as client:
        yield client


def test_the_page_and_its_files_are_served_with_a_strict_policy(ended: TestClient) -> None:
    page = ended.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert " onclick=" not in page.text
    assert " style=" not in page.text
    for file in STATIC.rglob("*"):
        if file.suffix in (".js", ".css"):
            assert ended.get(f"/static/{file.relative_to(STATIC)}").status_code == 200
    assert ended.get("/static/../app.py").status_code == 404


def test_a_recording_is_sent_in_as_many_points_as_asked_for(running: TestClient) -> None:
    whole = running.get("/api/recording?points=40").json()
    assert len(whole["series"]["rate"]) == 40
    assert (whole["running"], whole["controllable"]) == (True, True)
    assert whole["facts"]["slots"] == {"clicks": 64}
    assert whole["moment"]["steps"][0]["rates"]
    few = running.get("/api/recording?from=-10000").json()
    assert len(few["series"]["rate"]) == 11
    assert len(running.get("/api/recording?points=1000000000").json()["series"]["rate"]) == 90


@pytest.mark.parametrize("asked", ["points=many", "from=nan", "to=x"])
def test_a_wrong_number_is_refused(running: TestClient, asked: str) -> None:
    reply = running.get(f"/api/recording?{asked}")
    assert reply.status_code == 400
    assert "not a number" in reply.json()["error"]


def test_a_moment_is_found_by_its_time(ended: TestClient) -> None:
    assert ended.get(f"/api/moment?at={START_MS + 12_300}").json()["time_ms"] == START_MS + 12_000
    assert ended.get("/api/moment").status_code == 400
    nothing = KeptRecording(burst(1).facts, [], [])
    with TestClient(dashboard_app(nothing), BASE) as client:
        assert client.get("/api/moment?at=0").status_code == 404
        assert client.get("/api/recording").json()["moment"] is None


def _events(text: str) -> list[tuple[str, Any]]:
    """Names and data of server-sent events."""
    blocks = (dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
              for block in text.replace("\r\n", "\n").split("\n\n"))  # fmt: skip
    return [(b["event"], json.loads(b["data"])) for b in blocks if "event" in b]


def test_events_tell_what_is_new_and_when_the_query_ends() -> None:
    now = iter([100.0] * 6 + [101.0] * 6 + [200.0])
    last = [100.0]

    def clock() -> float:
        last[0] = next(now, 200.0)
        return last[0]

    with TestClient(dashboard_app(Growing(burst(), clock)), BASE) as client:
        since = START_MS + 97_500
        events = _events(client.get(f"/api/events?since={since}").text)
    assert [name for name, _ in events][-1] == "end"
    times = [ms for name, news in events if name == "moment" for ms in news["series"]["time_ms"]]
    assert times == [START_MS + 1000 * second for second in range(98, 181)]
    assert "its process ended" in codec.text(events[0][1]["journal"])


def test_a_client_that_connects_again_gets_what_it_missed(ended: TestClient) -> None:
    reply = ended.get("/api/events", headers={"last-event-id": f"{START_MS + 28_000}"})
    (name, news), _ = _events(reply.text)
    assert (name, len(news["series"]["rate"])) == ("moment", 2)
    assert ended.get("/api/events", headers={"last-event-id": "x"}).status_code == 400


def test_an_event_is_named_by_its_moment_in_full() -> None:
    whole = burst(3)
    odd = START_MS + 3000.0006
    last = replace(whole.kept[-1], time_ms=odd)
    app = dashboard_app(replace(whole, kept=[*whole.kept[:-1], last]))
    with TestClient(app, BASE) as client:
        (name,) = re.findall(r"^id: (\S+)", client.get("/api/events").text, re.MULTILINE)
        assert float(name) == odd
        again = client.get("/api/events", headers={"last-event-id": name})
        assert [event for event, _ in _events(again.text)] == ["end"]


def test_a_query_that_is_slow_to_answer_leaves_the_page_free(orders: NotedOrders) -> None:
    loops: list[str] = []

    class Remote(Growing):
        @property
        def running(self) -> bool:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return super().running
            loops.append("asked on the event loop")
            return True

    clock = iter([90.0] * 40)
    app = dashboard_app(Remote(burst(), lambda: next(clock, 200.0)), orders, TOKEN)
    with TestClient(app, BASE) as client:
        assert client.get("/api/recording").json()["controllable"]
        client.post("/api/scale", json={"step": "clicks", "hosts": 4}, headers=WITH_TOKEN)
        client.post("/api/what-if", json={"hours": 3}, headers=WITH_TOKEN)
        assert _events(client.get("/api/events").text)[-1][0] == "end"
    assert loops == []
    assert orders.given == [("clicks", 4)]


ORDERS: list[tuple[str, dict[str, Any], Any]] = [
    ("steer", {"latency": "2s", "margin": 0.3}, Steering(latency="2s", margin=0.3)),
    ("steer", {"dry_run": True}, Steering(dry_run=True)),
    ("move", {"step": "clicks", "slots": "0-2,9", "to": "clicks/1"}, ("clicks", (0, 1, 2, 9), "clicks/1")),
    ("scale", {"step": "clicks", "hosts": 4}, ("clicks", 4)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "given"), ORDERS)
def test_an_order_needs_the_token(
    running: TestClient, orders: NotedOrders, name: str, body: dict[str, Any], given: Any
) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        reply = running.post(f"/api/{name}", json=body, headers=headers)
        assert reply.status_code == 401
        assert "token" in reply.json()["error"]
        assert "penstock dashboard" in reply.json()["hint"]
    assert orders.given == []
    reply = running.post(f"/api/{name}", json=body, headers=WITH_TOKEN)
    assert reply.status_code == 200, reply.text
    assert reply.json()["done"]
    assert orders.given == [given]


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("steer", {}, "no change"),
        ("steer", {"speed": 3}, "cannot change speed"),
        ("move", {"step": "clicks", "slots": "64", "to": "clicks/1"}, "no slot 64"),
        ("move", {"step": "clicks", "slots": "", "to": "clicks/1"}, "no slots"),
        ("move", {"step": "other", "slots": "1", "to": "clicks/1"}, "no step 'other'"),
        ("scale", {"step": "clicks", "hosts": 0}, "not a number of hosts"),
        ("scale", {"step": "clicks", "hosts": "many"}, "not a number of hosts"),
    ],
)
def test_a_wrong_order_is_refused_with_a_cure(
    running: TestClient, orders: NotedOrders, name: str, body: dict[str, Any], why: str
) -> None:
    reply = running.post(f"/api/{name}", json=body, headers=WITH_TOKEN)
    assert reply.status_code == 400
    assert why in reply.json()["error"]
    assert reply.json()["hint"]
    assert orders.given == []


def test_an_ended_query_takes_no_orders(ended: TestClient) -> None:
    reply = ended.post("/api/scale", json={"step": "clicks", "hosts": 2}, headers=WITH_TOKEN)
    assert reply.status_code == 403
    assert "ended" in reply.json()["error"]


def test_the_refusal_of_the_query_itself_is_shown() -> None:
    class Refuses(NotedOrders):
        def scale(self, step: str, hosts: int) -> None:
            raise SettingError("there are 2 cores", hint="add some")

    app = dashboard_app(Growing(burst(), lambda: 90.0), Refuses(), TOKEN)
    with TestClient(app, BASE) as client:
        reply = client.post("/api/scale", json={"step": "clicks", "hosts": 9}, headers=WITH_TOKEN)
    assert (reply.status_code, reply.json()) == (
        400,
        {"error": "there are 2 cores", "hint": "add some"},
    )


def test_an_empty_token_opens_nothing(orders: NotedOrders) -> None:
    app = dashboard_app(Growing(burst(), lambda: 90.0), orders, "")
    with TestClient(app, BASE) as client:
        reply = client.post("/api/scale", json={}, headers={"authorization": "Bearer "})
    assert reply.status_code == 401


def test_other_sites_cannot_reach_it(running: TestClient) -> None:
    rebound = running.get("/api/recording", headers={"host": "evil.example"})
    assert rebound.status_code == 400
    assert "series" not in rebound.text
    form = running.post("/api/scale", content=b"{}", headers=WITH_TOKEN)
    assert form.status_code == 415
    assert "set-cookie" not in running.get("/").headers


def test_a_large_body_is_refused(running: TestClient) -> None:
    reply = running.post("/api/steer", json={"latency": "1" * 20_000}, headers=WITH_TOKEN)
    assert reply.status_code == 413
    asked = {"policy": "x" * 20_000}
    assert running.post("/api/what-if", json=asked, headers=WITH_TOKEN).status_code == 413


def test_a_simulation_beside_a_running_query_needs_the_token(running: TestClient) -> None:
    assert running.post("/api/what-if", json={"hours": 3}).status_code == 401
    assert running.post("/api/what-if", json={"hours": 3}, headers=WITH_TOKEN).status_code == 400


def test_what_if_compares_three_versions(
    ended: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def simulated(recording: Recording, **changes: Any) -> WhatIf:
        asked.append(changes)
        if changes.get("policy") == "magic":
            raise SettingError("unknown policy 'magic'", hint="use switch")
        version = Version(
            "switch", 500, 1000, 0.9, 80.0, 2.5, 3, {}, 0.01, (2.0,), (80.0,), (90.0,), ()
        )
        return WhatIf((START_MS,), (100.0,), version, None, version, ("no functions",))

    monkeypatch.setattr("penstock.observe.what_if.what_if", simulated)
    reply = ended.post("/api/what-if", json={"latency": "500ms", "margin": 0.3})
    assert reply.status_code == 200, reply.text
    assert asked == [{"latency": "500ms", "margin": 0.3}]
    assert reply.json()["what_if"]["success"] == 0.9
    wrong = ended.post("/api/what-if", json={"policy": "magic"})
    assert (wrong.status_code, wrong.json()["hint"]) == (400, "use switch")
    assert ended.post("/api/what-if", json={"hours": 3}).status_code == 400
    assert ended.post("/api/what-if", json={"at_most": "many"}).status_code == 400


def test_metrics_are_served_if_there_are_any() -> None:
    from starlette.responses import PlainTextResponse

    app = dashboard_app(burst(3), metrics=PlainTextResponse("penstock_rows_total 3"))
    with TestClient(app, BASE) as client:
        answer = client.get("/metrics", follow_redirects=False)
        assert (answer.status_code, answer.text) == (200, "penstock_rows_total 3")


def test_an_unknown_path_is_an_error_in_json(ended: TestClient) -> None:
    assert ended.get("/api/secrets").json()["error"] == "Not Found"
