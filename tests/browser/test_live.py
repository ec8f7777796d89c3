"""The dashboard of a real query on Spark, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from pyspark.sql import SparkSession

import penstock as ps
from penstock.console.dashboard import serve, shown
from penstock.observe.recording import kept_recording
from penstock.state.store.store import Store
from penstock.testing import Fault, Pace
from penstock_bench.workloads.shaped import shaped
from tests.browser.conftest import OpenPage
from tests.browser.looks import colours_drawn, owner_of, wider_than_the_screen
from tests.spark.test_faults import await_condition

pytestmark = pytest.mark.browser

STEP = "clicks"
SLOW = Fault("host.work", Pace(2_000.0), hits=())
"""A host processes 2,000 records per second, so that a burst can be made on a small machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("run") / "checkpoint")


@pytest.fixture(scope="module")
def query(spark: SparkSession, folder: str) -> Iterator[ps.FlowQuery]:
    """A query with two hosts whose controller is paused, so that only the tests move slots."""
    rows = shaped(spark, "steady(900)", keys=2_000, slots=32)
    keyed = ps.flow(rows, arrival="arrival").key_by("k", slots=32)
    flow = keyed.aggregate(n=ps.count(), name=STEP).sla("2s").elastic(at_most=4, dry_run=True)
    started = flow.start(
        ps.collect(),
        checkpoint=folder,
        hosts=2,
        name="clicks by user",
        settings=ps.Settings(faults=(SLOW,)),
        dashboard=True,
    )
    try:
        await_condition(lambda: len(started.recording.moments()) > 8, 120)
        await_condition(lambda: any(m.latency for m in started.recording.moments()), 120)
        yield started
    finally:
        started.stop()


@pytest.fixture
def url(query: ps.FlowQuery) -> str:
    assert query.dashboard_url is not None
    return query.dashboard_url


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_draw(
    open_page: OpenPage, url: str, pictures: Path, width: int, scheme: str
) -> None:
    page = open_page(url, width, scheme)
    expect(page.locator("#name")).to_have_text("clicks by user")
    expect(page.locator("#map .slot")).to_have_count(32)
    drawn = colours_drawn(page)
    assert min(drawn.values()) > 3, drawn
    assert wider_than_the_screen(page) == []
    picture = pictures / f"live-{width}-{scheme}.png"
    picture.write_bytes(page.screenshot(full_page=True))


def test_the_page_follows_the_query(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    before = page.inner_text("#tiles")
    expect(page.locator("#tiles")).not_to_have_text(re.compile(re.escape(before)), timeout=15_000)


def test_a_move_shows_up_in_the_map(
    open_page: OpenPage, url: str, query: ps.FlowQuery, pictures: Path
) -> None:
    page = open_page(url)
    source = owner_of(page, 3)
    target = next(host for host in sorted(query.status.hosts) if host != source)
    query.move(STEP, [3], target)
    page.wait_for_selector("#map .slot.moved[data-slot='3']", timeout=60_000)
    assert owner_of(page, 3) == target
    expect(page.locator("#moves li").first).to_contain_text(f"(3) from {source} to {target}")
    (pictures / "live-move.png").write_bytes(page.screenshot(full_page=True))


def test_the_sla_is_changed_with_the_token_only(
    open_page: OpenPage, url: str, query: ps.FlowQuery, folder: str
) -> None:
    page = open_page(url)
    panel, answer = page.locator("#control"), page.locator("#control .answer")
    panel.get_by_label("SLA latency").fill("3s")
    panel.get_by_role("button", name="Change").click()
    expect(answer).to_contain_text("token is missing or wrong")
    assert query.control.machine.sla == ps.SLA(2_000, 1_000)
    panel.get_by_label("Control token").fill(shown(folder, None).token)
    panel.get_by_role("button", name="Change").click()
    expect(answer).to_contain_text("Changed")
    assert query.control.machine.sla == ps.SLA(3_000, 1_000)
    expect(page.locator("#promise")).to_contain_text("at most 3 s", timeout=15_000)


def test_the_command_names_the_dashboard_of_a_running_query(url: str, folder: str) -> None:
    said: list[str] = []
    serve(folder, 0, False, say=said.append, wait=lambda: pytest.fail("must not serve"))
    assert re.fullmatch(f"The query serves its dashboard at {url}#token=[0-9a-f]+", said[0])


def test_prometheus_finds_the_metrics(url: str, query: ps.FlowQuery) -> None:
    assert "# HELP penstock_" in httpx.get(f"{url}metrics/").text


def test_the_end_is_shown_until_the_query_is_stopped(
    open_page: OpenPage, url: str, query: ps.FlowQuery, folder: str
) -> None:
    """The last test: it ends the query."""
    page = open_page(url)
    query._parts.stopping.set()
    query.await_termination(60)
    expect(page.locator("#state")).to_have_text("stopped", timeout=15_000)
    expect(page.locator("#control")).to_be_hidden()
    assert httpx.get(f"{url}api/recording").json()["running"] is False
    page.close()
    query.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    kept = kept_recording(Store(f"{folder}/penstock"))
    assert kept.kept[-1].state == "stopped"
    said: list[str] = []

    def look() -> None:
        again = open_page(said[0].rsplit(" ", 1)[1])
        expect(again.locator("#state")).to_have_text("stopped")
        assert min(colours_drawn(again).values()) > 3

    serve(folder, 0, False, say=said.append, wait=look)
    assert said[0].startswith("Dashboard of the recording of an ended query:")
