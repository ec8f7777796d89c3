"""`penstock report` on a recording in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.driver.journal_writer import JournalWriter, StartWriter
from penstock.model import HostId
from penstock.observe.recording import line_of
from penstock.state.store.store import FORMAT, Store
from tests.cli.test_cli import ends_with
from tests.observe.made_up import START_MS, recording


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with a recorded run that lost a host."""
    store = Store(f"{tmp_path}/checkpoint/penstock")
    store.write_flow({"format": FORMAT, "id": "f1", "steps": []})
    recorded = recording(60, burst=range(20, 40))
    writer = StartWriter(store, "moments", START_MS, line_of)
    writer(recorded.facts)
    for moment in recorded.kept:
        writer(moment)
    writer.stop()
    journal = JournalWriter(store)
    at = At("clicks", START_MS + 12_000)
    journal(entries.host_lost(at, HostId("clicks/1"), [4, 5], "its process ended"))
    journal.stop()
    return tmp_path / "checkpoint"


def test_a_report_is_written_and_its_summary_printed(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "report.html"
    assert ends_with("report", str(checkpoint), "--output", str(file)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Run    clicks ran in micro-batches for 60 s")
    assert "14:13:32  host clicks/1 with slots 4-5 was lost: its process ended" in printed
    assert printed[-1] == f"Wrote {file}"
    assert "Kept in 65.5 % of 58 windows" in file.read_text()


def test_a_start_that_is_not_recorded_is_an_error(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with("report", str(checkpoint), "--start", "5") == 2
    assert f"use one of {START_MS:.0f}" in capsys.readouterr().err
