"""The page of a made-up query, in a browser. The first test runs wherever there is a Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.observe.dashboard.page import whole_page
from penstock.observe.dashboard.server import DashboardServer, listening
from penstock.observe.dashboard.timeline import page_data
from penstock.observe.what_if import Version, WhatIf
from tests.browser.conftest import OpenPage
from tests.browser.looks import colours_drawn, owner_of, wider_than_the_screen
from tests.observe.dashboard.burst import START_MS, Growing, NotedOrders, burst

TOKEN = "0123456789abcdef"


class Hand:
    """A clock that is turned by hand, in seconds."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand(87.5)


@pytest.fixture
def orders() -> NotedOrders:
    return NotedOrders()


@pytest.fixture
def url(hand: Hand, orders: NotedOrders) -> Iterator[str]:
    """The dashboard of a query in the middle of a burst."""
    listens = listening(True)
    assert listens is not None
    server = DashboardServer(listens, Growing(burst(), hand), orders, TOKEN)
    yield server.url
    server.stop()


def test_the_page_loads_and_its_charts_draw(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    drawn = colours_drawn(page)
    assert min(drawn.values()) > 3, drawn
    assert page.locator("#map .slot").count() == 64
    assert "Burst" in page.inner_text("#summary")
    assert page.inner_text("#state") == "running"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 820, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_every_screen(
    open_page: OpenPage, url: str, pictures: Path, width: int, scheme: str
) -> None:
    page = open_page(url, width, scheme)
    assert wider_than_the_screen(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = pictures / f"made-up-{width}-{scheme}.png"
    picture.write_bytes(page.screenshot(full_page=True))


@pytest.mark.browser
def test_moves_are_seen_as_they_happen(open_page: OpenPage, url: str, hand: Hand) -> None:
    whole = burst()
    lost = whole.kept[97].moves.handovers[0]  # when a host is lost
    slot = lost.slots[0]
    hand.now = 97.2
    page = open_page(url)
    assert owner_of(page, slot) == lost.source
    hand.now = 98.2
    page.wait_for_selector(f"#map .slot.moved[data-slot='{slot}']")
    assert owner_of(page, slot) == lost.target
    assert "host lost" in page.inner_text("#moves")
    expect(page.locator("#journal li").first).to_have_attribute("data-kind", "host lost")
    assert "clicks/3" in page.inner_text("#news")


@pytest.mark.browser
def test_orders_need_the_token(open_page: OpenPage, url: str, orders: NotedOrders) -> None:
    page = open_page(url)
    panel = page.locator("#control")
    panel.get_by_label("SLA latency").fill("2s")
    panel.get_by_role("button", name="Change").click()
    page.wait_for_selector("#control .answer[data-health=bad]")
    assert "token is missing or wrong" in panel.inner_text()
    assert orders.given == []
    panel.get_by_label("Control token").fill(TOKEN)
    panel.get_by_role("button", name="Change").click()
    page.wait_for_selector("#control .answer[data-health=good]")
    page.locator("#map .slot[data-slot='5']").click()
    panel.get_by_label("To host").select_option("clicks/1")
    panel.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("#control .answer")).to_contain_text("Slots 5")
    assert orders.given[-1] == ("clicks", (5,), "clicks/1")


@pytest.mark.browser
def test_the_address_can_bring_the_token(
    open_page: OpenPage, url: str, orders: NotedOrders
) -> None:
    page = open_page(f"{url}#token={TOKEN}")
    assert TOKEN not in page.url
    page.get_by_role("button", name="Pause the controller").click()
    page.wait_for_selector("#control .answer[data-health=good]")
    assert orders.given[0].dry_run is True


@pytest.mark.browser
def test_a_lost_connection_is_said(browser_server: DashboardServer, open_page: OpenPage) -> None:
    page = open_page(browser_server.url)
    assert not page.is_visible("#trouble")
    browser_server.stop()
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Connection lost" in page.inner_text("#trouble")


@pytest.fixture
def browser_server(hand: Hand) -> Iterator[DashboardServer]:
    listens = listening(True)
    assert listens is not None
    server = DashboardServer(listens, Growing(burst(), hand))
    yield server
    server.stop()


@pytest.mark.browser
def test_the_pointer_looks_back_and_a_range_is_chosen(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    assert page.locator("#map .host").count() == 8
    over = page.locator("#chart-latency .u-over").bounding_box()
    assert over is not None
    page.mouse.move(over["x"] + over["width"] * 0.2, over["y"] + 40)
    expect(page.locator("#map .host")).to_have_count(2)
    before = page.inner_text("#chart-input .chips")
    page.mouse.move(over["x"] + over["width"] * 0.9, over["y"] + 40)
    assert page.inner_text("#chart-input .chips") != before  # readouts move together
    page.mouse.move(5, 5)
    expect(page.locator("#map .host")).to_have_count(8)
    page.get_by_text("2 min").click()
    assert page.is_checked("input[value='120']")


@pytest.mark.browser
def test_the_page_can_be_used_by_keyboard(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the charts"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select")].filter((one) =>
        !(one.labels?.length || one.textContent.trim() || one.getAttribute("aria-label"))).length"""
    )
    assert unnamed == 0
    labels = page.eval_on_selector_all(".plot[role=img]", "all => all.map(one => one.ariaLabel)")
    assert any("mean" in label and "SLA 1 s" in label for label in labels)


@pytest.mark.browser
def test_what_if_is_shown_side_by_side(
    open_page: OpenPage, url: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = tuple(START_MS + 1000 * second for second in range(60))
    was = Version(
        "switch", 1000, 1000, 0.97, 140.0, 3.4, 8, {}, 0.01, (2.0,) * 30 + (8.0,) * 30, ()
    )
    then = Version("static(2)", 1000, 1000, 0.5, 4000.0, 2.0, 2, {}, 0.005, (2.0,) * 60, ())
    found = WhatIf(seconds, (), was, was, then, ("functions are left out",))
    monkeypatch.setattr("penstock.observe.what_if.what_if", lambda recording, **_: found)
    page = open_page(f"{url}#token={TOKEN}")
    panel = page.locator("#what-if")
    panel.get_by_label("Policy").fill("static(2)")
    panel.get_by_role("button", name="Simulate").click()
    expect(panel.locator("tbody tr")).to_have_count(3)
    expect(panel.locator("tbody tr").last).to_contain_text("50.0 %")
    expect(panel.locator("canvas")).to_be_visible()
    (pictures / "what-if.png").write_bytes(panel.screenshot())


@pytest.mark.browser
def test_a_file_shows_a_recording_without_a_server(open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(whole_page(page_data(burst())), encoding="utf-8")
    page = open_page(file.as_uri())
    drawn = colours_drawn(page)
    assert min(drawn.values()) > 3, drawn
    assert page.is_hidden("#control")
    assert page.is_hidden("#what-if")
    assert page.locator("#journal li").count() > 5
