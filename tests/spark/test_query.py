"""The end of a query, with parts that stand in for the real ones."""

from __future__ import annotations

import threading
from unittest.mock import MagicMock

import pytest

from penstock.spark.query import FlowQuery


def test_a_part_that_fails_to_end_keeps_no_other_part_and_not_the_query_from_ending() -> None:
    parts = MagicMock(run_id="run", stopping=threading.Event())
    parts.start = MagicMock(temporary=False)
    parts.start.source.isStreaming = False
    parts.start.settings.faults = ()
    parts.epochs.error = None
    parts.keeper.stop.side_effect = RuntimeError("cannot schedule new futures after shutdown")
    query = FlowQuery(parts).launch()
    with pytest.raises(RuntimeError, match="cannot schedule"):
        query.await_termination(10)
    assert not query.is_active
    for end in (parts.bill.end, parts.fleet.stop, parts.registry.shutdown):
        end.assert_called_once_with()
    parts.store.remove_control.assert_called_once_with()
