"""The end of a query, with parts that stand in for the real ones."""

from __future__ import annotations

import logging
import threading
from unittest.mock import MagicMock

import pytest

from penstock.errors import PenstockError
from penstock.observe.recording import Recording
from penstock.spark import query as module
from penstock.spark.parts import QueryParts
from penstock.spark.query import FlowQuery

PARTS = ("keeper.stop", "bill.end", "runner.stop", "journal.stop", "events.stop", "fleet.stop")
LAST = ("registry.shutdown", "store.remove_control")


@pytest.mark.parametrize("bad", [*PARTS, *LAST])
@pytest.mark.parametrize("how", [RuntimeError, OSError, KeyboardInterrupt, PenstockError])
def test_a_part_that_does_not_end_keeps_no_other_part_and_not_the_query_from_ending(
    monkeypatch: pytest.MonkeyPatch, bad: str, how: type[BaseException]
) -> None:
    """It fails or, where `how` is our own error, hangs. The first of two failures is told."""
    over = threading.Event()
    parts = MagicMock(run_id="run", stopping=threading.Event())
    parts.start = MagicMock(temporary=False, report=None, dashboard=None)
    parts.start.source.isStreaming = False
    parts.start.settings.faults = ()
    parts.epochs.error = parts.error = None
    parts.ends = lambda: [parts.keeper.stop, *QueryParts.ends(parts)]
    hangs = how is PenstockError
    monkeypatch.setattr(module, "_END_S", 0.2 if hangs else 60.0)
    wrong = (lambda: over.wait(60)) if hangs else how("it cannot be ended")
    parts.configure_mock(**{f"{bad}.side_effect": wrong})
    if bad != LAST[-1]:
        parts.store.remove_control.side_effect = OSError("the store is gone")
    query = FlowQuery(parts).launch()
    with pytest.raises(how, match="did not end" if hangs else "cannot be ended"):
        query.await_termination(10)
    over.set()
    assert not query.is_active
    assert query.status.state == "failed"
    for part in (*PARTS, *LAST):
        whose, end = part.split(".")
        getattr(getattr(parts, whose), end).assert_called_once_with()


def test_a_query_that_waits_for_its_store_says_so() -> None:
    parts = MagicMock(run_id="run", keeper=None)
    parts.start.dashboard = None
    parts.runner.upkeep_trouble = ""
    parts.store.files.trouble = "cannot write manifests/000000000003.json of s3://b; 3 s so far"
    assert "; waiting for the store: cannot write manifests/" in FlowQuery(parts).status.message
    parts.store.files.trouble = ""
    assert "store" not in FlowQuery(parts).status.message


@pytest.mark.parametrize("fails", [False, True])
def test_a_query_leaves_a_report_and_one_line_if_it_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    written = []

    def write(recording: Recording, path: str) -> None:
        written.append((path, query.status.state, query.is_active))
        if fails:
            raise OSError("the disk is full")

    parts = MagicMock(run_id="run", stopping=threading.Event(), error=None, keeper=None)
    parts.start = MagicMock(temporary=False, report="out/report.html", dashboard=None)
    parts.start.settings.faults = ()
    parts.ends = lambda: []
    parts.drive = lambda: "finished"
    monkeypatch.setattr(module, "write_report", write)
    query = FlowQuery(parts)
    with caplog.at_level(logging.INFO, "penstock.query"):
        assert query.launch().await_termination(10)
    assert written == [("out/report.html", "finished", True)]
    assert query.status.state == "finished"
    lines = [r for r in caplog.records if "report" in r.getMessage()]
    assert [r.levelname for r in lines] == ["WARNING" if fails else "INFO"]
    assert fails == ("the disk is full" in lines[0].getMessage())
