from __future__ import annotations

import socket
import sys
import threading

import httpx
import pytest

from penstock.errors import SettingError
from penstock.observe.dashboard.app import STATIC
from penstock.observe.dashboard.page import MODULES, whole_page
from penstock.observe.dashboard.server import DashboardServer, listening
from penstock.observe.dashboard.timeline import page_data
from tests.observe.dashboard.burst import Growing, burst


def test_a_server_listens_on_the_loopback_address_and_ends() -> None:
    listens = listening(True)
    assert listens is not None
    server = DashboardServer(listens, burst(5))
    try:
        assert server.url.startswith("http://127.0.0.1:")
        assert "Penstock" in httpx.get(server.url).text
    finally:
        server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    server.stop()


def test_open_events_do_not_hold_a_server_up() -> None:
    listens = listening(True)
    assert listens is not None
    server = DashboardServer(listens, Growing(burst(5), lambda: 2.5))
    try:
        with httpx.stream("GET", f"{server.url}api/events") as events:
            assert next(events.iter_lines())
            stops = threading.Thread(target=server.stop)
            stops.start()
            stops.join(10)
            assert not stops.is_alive()
    finally:
        server.stop()


def test_a_server_on_all_addresses_knows_the_names_of_its_machine() -> None:
    listens = listening("0.0.0.0:0")
    assert listens is not None
    server = DashboardServer(listens, burst(2))
    try:
        for name, status in ((socket.gethostname(), 200), ("evil.example", 400)):
            assert httpx.get(server.url, headers={"host": name}).status_code == status
    finally:
        server.stop()


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port}") as refused:
            listening(port)
    assert "another port" in refused.value.hint


@pytest.mark.parametrize("where", ["here", "localhost", "127.0.0.1:x", 70_000])
def test_a_wrong_place_is_refused(where: str | int) -> None:
    with pytest.raises(SettingError, match="not a place to listen"):
        listening(where)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sse_starlette", None)
    with pytest.raises(SettingError, match="sse_starlette") as refused:
        listening(True)
    assert refused.value.hint == "pip install 'penstock[dashboard]'"
    assert listening(False) is None


def test_the_page_as_one_file_has_everything_inlined() -> None:
    assert sorted(MODULES) == sorted(file.name for file in STATIC.glob("*.js"))
    kept = burst(5)
    data = page_data(kept) | {"note": "</script><script>alert(1)</script>"}
    page = whole_page(data, title="a <b> run")
    assert "static/" not in page
    assert "alert(1)</script>" not in page
    assert "<title>a &lt;b&gt; run</title>" in page
    assert page.count("<script") == page.count("</script>")
    assert "\nimport " not in page
    assert "\nexport " not in page
    assert 'id="recording"' not in whole_page(None)
