from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.errors import SettingError
from penstock.model import HostId
from penstock.observe.report.html import report_page, summary_html, write_report
from penstock.observe.report.summary import summary
from tests.observe.made_up import START_MS, recording

LOST = entries.host_lost(
    At("clicks", START_MS + 12_000), HostId("clicks/1"), [4, 5], "its <process> ended"
)


def test_the_report_is_one_page_that_loads_nothing() -> None:
    page = report_page(recording(60, burst=range(20, 40), entries=[LOST]))
    assert page.count("<main") == 1
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", page)
    assert "@import" not in page
    assert page.index("<main") < page.index('id="report"') < page.index('id="charts"')


def test_the_summary_comes_with_the_events_that_mattered() -> None:
    html = summary_html(summary(recording(60, burst=range(20, 40), entries=[LOST])))
    assert "<dt>SLA</dt><dd>Kept in 65.5 % of 58 windows" in html
    assert (
        "<time>14:13:32</time>host clicks/1 with slots 4-5 was lost: its &lt;process&gt; ended"
        in html
    )


def test_an_hour_is_a_few_megabytes() -> None:
    page = report_page(recording(3_600, burst=range(1_000, 1_300)))
    assert len(page) < 4_000_000


def test_a_run_without_a_moment_has_a_page() -> None:
    assert "No row came out" in report_page(recording(0))


def test_a_failed_run_has_a_page() -> None:
    recorded = recording(5)
    last = replace(recorded.kept[-1], state="failed", message="the <disk> is full")
    page = report_page(replace(recorded, kept=[*recorded.kept[:-1], last]))
    assert "It failed: the &lt;disk&gt; is full." in page


def test_the_folder_of_the_file_is_made(tmp_path: Path) -> None:
    file = write_report(recording(5), tmp_path / "out" / "today" / "report.html")
    assert file.read_text().startswith("<!doctype html>")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"is a folder.*name a file"):
        write_report(recording(5), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"cannot write the report.*where you may write"):
        write_report(recording(5), tmp_path / "file" / "report.html")
