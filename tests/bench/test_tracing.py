"""`penstock bench pipeline --trace`: its table, from made-up accounts."""

from __future__ import annotations

import pytest

from penstock_bench.pipeline import tracing


def test_typical_phases_add_up_and_leave_out_the_extremes() -> None:
    accounts = [{"planning": 5.0, "seal": 5.0 + n} for n in range(4)] + [{"planning": 900.0}] * 2
    accounts += [{"seal": 1.0}] * 2
    typical = tracing._typical(accounts)
    assert typical["triggers"] == 8
    assert typical["phases_ms"] == {"planning": 5.0, "seal": 6.5}
    assert typical["trigger_ms"] == pytest.approx(sum(typical["phases_ms"].values()))
    assert typical["median_ms"] == pytest.approx(11.5)


def test_the_table_has_a_line_for_each_phase_and_their_sum() -> None:
    ours = tracing._typical([{"planning": 4.0, "courier read": 3.0, "commit log": 8.0}])
    limit = tracing._typical([{"planning": 4.0, "sink": 30.5, "commit log": 8.0}])
    text = tracing.table({"rows_10000": {"penstock": ours, "limit": limit}})
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert "10,000" in text
    assert lines["courier read"][2] == "3.0"
    assert lines["sink"][1] == "30.5"
    assert lines["sum"][1:3] == ["15.0", "42.5"]
    assert "host apply" not in lines
