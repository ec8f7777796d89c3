"""The page of a made-up query, in a browser. The first test runs wherever there is a Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from penstock.control.journal.entry import Entry
from penstock.model import SLA, HostId, StepId
from penstock.observe.dashboard.page import whole_page
from penstock.observe.dashboard.server import DashboardServer, listening
from penstock.observe.dashboard.timeline import journal, page_data
from penstock.observe.moment import Moment, MovesMoment
from penstock.observe.recording import Recording
from penstock.observe.what_if import Version, WhatIf
from penstock.plan.placement import Handover
from tests.browser.conftest import OpenPage
from tests.browser.looks import colours_drawn, owner_of, seconds_of, wider_than_the_screen
from tests.observe.dashboard.burst import (
    START_MS,
    Growing,
    NotedOrders,
    burst,
    stalled,
    with_bounds,
)

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
        "switch", 1000, 1000, 0.97, 140.0, 3.4, 8, {}, 0.01, (2.0,) * 30 + (8.0,) * 30, (), (), ()
    )
    then = Version("static(2)", 1000, 1000, 0.5, 4000.0, 2.0, 2, {}, 0.005, (2.0,) * 60, (), (), ())
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


@pytest.fixture
def serve() -> Iterator[Callable[[Recording], str]]:
    """Serves a recording. Returns the address of its page."""
    servers: list[DashboardServer] = []

    def served(recording: Recording) -> str:
        listens = listening(True)
        assert listens is not None
        servers.append(DashboardServer(listens, recording, NotedOrders(), TOKEN))
        return servers[-1].url

    yield served
    for server in servers:
        server.stop()


def _without_hosts(moment: Moment) -> Moment:
    """The moment as if no host had started yet: its slots have no owners."""
    (step,) = moment.steps
    nothing = replace(step, hosts=(), owner=(-1,) * len(step.owner))
    return replace(moment, steps=(nothing,), message="waits for hosts")


@pytest.mark.browser
def test_a_page_that_is_opened_before_slots_have_owners_comes_to_life(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    whole, hand.now = burst(40), 2.5
    starts = [_without_hosts(moment) for moment in whole.kept[:4]]
    page = open_page(serve(Growing(replace(whole, kept=[*starts, *whole.kept[4:]]), hand)))
    expect(page.locator("#map .slot")).to_have_count(0)
    assert "64 slots without a host" in page.inner_text("#map")
    hand.now = 20.5
    expect(page.locator("#map .slot")).to_have_count(64)
    assert "without a host" not in page.inner_text("#map")
    assert page.is_hidden("#trouble")


@pytest.mark.browser
def test_a_page_whose_first_drawing_fails_follows_the_query(
    open_page: OpenPage, url: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undrawable(*_: object) -> list[dict[str, Any]]:
        monkeypatch.setattr("penstock.observe.dashboard.timeline.journal", journal)
        hand.now = 90.5  # with new entries, the page gets the journal again
        return [{"time_ms": "not a time", "kind": "", "step": "", "text": "", "important": True}]

    monkeypatch.setattr("penstock.observe.dashboard.timeline.journal", undrawable)
    page = open_page(url)
    expect(page.locator("#journal li").first).to_contain_text("clicks")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_a_stall_is_red_and_says_for_how_long(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand, pictures: Path, width: int
) -> None:
    page = open_page(
        serve(Growing(stalled(burst(), 40), hand)), width
    )  # the last row came after 39 s
    summary = page.locator("#summary")
    expect(summary).to_have_attribute("data-health", "bad")
    assert "Nothing has come out for 48 s, and 192K rows wait; the bound is 1 s" in (
        summary.inner_text()
    )
    latency = page.locator("#tiles .tile").nth(1)
    expect(latency).to_have_attribute("data-health", "bad")
    assert "No output for" in latency.inner_text()
    (pictures / f"stall-{width}.png").write_bytes(page.screenshot(full_page=True))


@pytest.mark.browser
def test_a_pause_of_a_second_is_no_stall(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    hand.now = 40.5
    page = open_page(serve(Growing(stalled(burst(), 40), hand)))
    expect(page.locator("#summary")).to_have_attribute("data-health", "good")
    hand.now = 42.5
    expect(page.locator("#summary")).to_have_attribute("data-health", "bad")


@pytest.mark.browser
def test_a_query_without_input_is_not_said_to_stall(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    quiet = stalled(burst(), 40)
    kept = [replace(moment, backlog=0) if not moment.rows else moment for moment in quiet.kept]
    page = open_page(serve(Growing(replace(quiet, kept=kept), hand)))
    assert page.inner_text("#summary") == "No rows arrive."
    expect(page.locator("#summary")).not_to_have_attribute("data-health", "bad")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_bound_is_drawn_with_its_own_figure(
    open_page: OpenPage,
    serve: Callable[[Recording], str],
    hand: Hand,
    pictures: Path,
    width: int,
    scheme: str,
) -> None:
    page = open_page(serve(Growing(with_bounds(burst()), hand)), width, scheme)
    assert page.inner_text("#promise") == (
        "SLA: mean latency of at most 1 s; p99 latency of at most 1.5 s; "
        "mean latency of step clicks of at most 800 ms, in every window of 1 s"
    )
    tiles = page.locator("#bounds .tile")
    expect(tiles).to_have_count(3)
    p99 = with_bounds(burst()).kept[86].latency
    assert p99 is not None
    value = seconds_of(tiles.nth(1).locator(".big").inner_text())
    assert value == pytest.approx(p99.p99_ms / 1000, rel=0.02)
    assert "Mean of clicks ≤ 800 ms" in tiles.nth(2).inner_text()
    chips = page.inner_text("#chart-latency .chips")
    assert all(label in chips for label in ("SLA mean", "SLA p99", "SLA mean of clicks"))
    assert page.locator("#chart-success .chip").count() == 3
    assert wider_than_the_screen(page) == []
    (pictures / f"bounds-{width}-{scheme}.png").write_bytes(page.screenshot(full_page=True))


@pytest.mark.browser
def test_a_bound_on_p99_alone_is_compared_with_the_p99(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    hand.now = 20.5
    recording = with_bounds(burst(), SLA(250, 1_000, p99=True))
    seen = recording.kept[19].latency
    assert seen is not None
    assert seen.mean_ms < 250 < seen.p99_ms  # the mean would look green
    page = open_page(serve(Growing(recording, hand)))
    expect(page.locator("#summary")).to_have_attribute("data-health", "bad")
    assert "p99 is" in page.inner_text("#summary")
    assert "above the bound of 250 ms" in page.inner_text("#summary")
    tile = page.locator("#tiles .tile").nth(1)
    assert tile.get_by_role("heading").inner_text() == "p99 now"
    expect(tile).to_have_attribute("data-health", "bad")


@pytest.mark.browser
def test_a_bound_that_is_set_while_the_query_runs_is_drawn(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    whole, more = burst(), with_bounds(burst())
    hand.now = 20.5
    kept = [*whole.kept[:21], *more.kept[21:]]
    page = open_page(serve(Growing(replace(whole, kept=kept), hand)))
    expect(page.locator("#bounds")).to_be_hidden()
    hand.now = 30.5
    expect(page.locator("#bounds .tile")).to_have_count(3)
    assert "SLA p99" in page.inner_text("#chart-latency .chips")


@pytest.mark.browser
def test_what_comes_again_after_a_lost_connection_counts_once(
    open_page: OpenPage, url: str
) -> None:
    page = open_page(url)
    seen = page.evaluate(
        """async () => {
          const { Model } = await import("/static/model.js");
          const read = async () => (await fetch("api/recording")).json();
          const model = new Model(await read()), again = await read();
          const counts = ({ totals, marks, moves }) =>
            [totals.windows, totals.bounds.mean.windows, marks.length, moves.length];
          const before = counts(model);
          again.series.time_ms[again.series.time_ms.length - 1] += 1000;
          model.take({ ...again, journal: null }, again.series, 0);
          return counts(model).map((value, at) => value - before[at]);
        }"""
    )
    assert seen == [1, 1, 0, 0]


@pytest.mark.browser
def test_slots_are_reached_by_keyboard(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    stop = page.locator("#map .slot[tabindex='0']")
    expect(stop).to_have_count(1)
    stop.focus()
    focused = "document.activeElement.getAttribute('aria-label')"
    first = page.evaluate(focused)
    assert re.fullmatch(r"slot \d+: [\d,]+ records/s, on clicks/\d+", first)
    page.keyboard.press("ArrowRight")
    second = page.evaluate(focused)
    assert second != first
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focused)
    assert below.rsplit(" ", 1)[1] != second.rsplit(" ", 1)[1]  # the row of another host
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == first
    page.keyboard.press("Enter")
    slot = re.match(r"slot (\d+)", first)
    assert slot is not None
    assert page.input_value("#move-slots") == slot[1]
    expect(stop).to_have_count(1)


@pytest.mark.browser
def test_the_focus_stays_on_a_slot_that_moves(open_page: OpenPage, url: str, hand: Hand) -> None:
    slot = burst().kept[97].moves.handovers[0].slots[0]
    hand.now = 97.2
    page = open_page(url)
    page.locator(f"#map .slot[data-slot='{slot}']").focus()
    hand.now = 98.2
    page.wait_for_selector(f"#map .slot.moved[data-slot='{slot}']")
    assert page.evaluate("document.activeElement.dataset.slot") == str(slot)


@pytest.mark.browser
def test_splits_failures_and_moves_by_hand_are_marked(
    open_page: OpenPage, serve: Callable[[Recording], str], hand: Hand
) -> None:
    whole = burst()
    entries = [Entry(START_MS + 20_000, 20, "clicks", event, "") for event in ("split", "failed")]
    handover = Handover(StepId("clicks"), (1,), HostId("clicks/0"), HostId("clicks/1"), "move")
    kept = list(whole.kept)
    kept[29] = replace(kept[29], moves=MovesMoment(handovers=(handover,)))
    recording = replace(
        whole, kept=kept, journal=sorted([*whole.journal, *entries], key=lambda e: e.time_ms)
    )
    page = open_page(serve(Growing(recording, hand)))
    signs = page.inner_text("#chart-hosts .note")
    assert all(sign in signs for sign in ("÷ split", "! failed", "↔ move by hand"))
