"""The report of a run as one HTML file: the summary in words, and the dashboard's page with its data."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from penstock.errors import SettingError
from penstock.observe.dashboard.page import whole_page
from penstock.observe.dashboard.timeline import page_data
from penstock.observe.recording import Recording, whole_recording
from penstock.observe.report.summary import Summary, clock, summary

_MAIN = re.compile(r"<main\b[^>]*>")
_STYLE = """<style>
#report { margin-bottom: 1rem }
#report h2 { margin-top: 0 }
#report dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1rem; margin: .5rem 0 1rem }
#report dt { font-weight: 600 }
#report dd { margin: 0 }
#report ol { margin: .3rem 0 0; padding-left: 1.2rem }
#report time { font-variant-numeric: tabular-nums; opacity: .75; margin-right: .4rem }
@media (max-width: 600px) { #report dl { grid-template-columns: 1fr } #report dd { margin-bottom: .4rem } }
</style>"""


def report_page(recording: Recording) -> str:
    """The report of a recording, from its first second on: an HTML page that loads nothing from elsewhere."""
    recording = whole_recording(recording)
    page = whole_page(page_data(recording))
    main = _MAIN.search(page)
    assert main is not None
    told = summary_html(summary(recording))
    return page[: main.end()] + told + page[main.end() :]


def write_report(recording: Recording, path: str | Path) -> Path:
    """Write the report of a recording to a file. Its folder is made if needed."""
    file = writable(path)
    try:
        file.write_text(report_page(recording), encoding="utf-8")
    except OSError as wrong:
        raise _unwritable(file, wrong) from wrong
    return file


def writable(path: str | Path) -> Path:
    """A file for a report, whose folder exists from now on. Raises `SettingError` if that cannot be."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise _unwritable(file, wrong) from wrong
    if file.is_dir():
        raise SettingError(f"{file} is a folder", hint="name a file, such as report.html")
    return file


def summary_html(told: Summary) -> str:
    """The summary as a section of the page."""
    started = datetime.fromtimestamp(told.begun_ms / 1000, UTC).strftime("%d %B %Y")
    said = "".join(
        f"<dt>{escape(heading)}</dt><dd>{escape(text)}</dd>"
        for heading, text in told.sentences().items()
    )
    decisions = "".join(
        f"<li><time>{clock(item.time_ms)}</time>{escape(item.text)}</li>" for item in told.decisions
    )
    events = f"<h3>What mattered most</h3><ol>{decisions}</ol>" if decisions else ""
    return (
        f'{_STYLE}<section id="report" class="card" aria-labelledby="report-title">'
        f'<h2 id="report-title">Report of {escape(told.facts.name)}, {started}</h2>'
        f"<dl>{said}</dl>{events}</section>"
    )


def _unwritable(file: Path, wrong: OSError) -> SettingError:
    return SettingError(
        f"cannot write the report {file}: {wrong.strerror or wrong}",
        hint="name a file in a folder where you may write",
    )
