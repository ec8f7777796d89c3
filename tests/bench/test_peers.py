"""`penstock bench peers`: its stream and answers, its ratios, and sides that are missing or wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import PenstockError, SettingError
from penstock_bench.live.arena import LiveArena
from penstock_bench.peers import bench, engines, latency, timing
from penstock_bench.peers.answers import wrong
from penstock_bench.peers.stream import FULL, REPORT_EVERY, SMALL, SMALL_ROWS, fold
from tests.bench.made_up import peers_report, peers_results


def rows() -> list[tuple[int, int, int]]:
    columns = SMALL.columns(np.arange(SMALL_ROWS))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def lines_of(task: str) -> list[str]:
    """The right answer to a task, as a side that emits updates writes it."""
    states: dict[Any, Any] = {}
    lines = []
    for k, v, t in rows():
        if task == "sum":
            states[k] = states.get(k, 0) + v
            lines.append(f"+U[{k}, {states[k]}]")
        elif task == "windowed":
            window = (k, t // 1_000_000)
            states[window] = states.get(window, 0) + 1
        else:
            states[k] = fold(states.get(k), v)
            if states[k][0] % REPORT_EVERY == 0:
                lines.append(f"{k},{','.join(map(str, states[k]))}")
    if task == "windowed":
        lines = [f"('{k}', ({w}, {n}))" for (k, w), n in states.items()]
    return lines


@pytest.mark.parametrize("task", ["sum", "windowed", "python_fn"])
def test_answers_are_compared_with_those_of_duckdb(task: str, tmp_path: Path) -> None:
    right = lines_of(task)
    (tmp_path / "part-1").write_text("\n".join(right[::2]) + "\n")
    (tmp_path / "part-2").write_text("\n".join([*right[1::2], "-U[7, 999999999, 1, 1]"]) + "\n")
    (tmp_path / "_SUCCESS").write_text("1 2 3 4")
    assert wrong(task, tmp_path) == ""
    (tmp_path / "part-3").write_text(
        f"{re.sub('[0-9]+', '1', right[0])}\n" if task == "windowed" else "5, 99999999, 1, 1\n"
    )
    assert "unexpected" in wrong(task, tmp_path)


def test_a_window_that_is_counted_twice_or_not_at_all_is_wrong(tmp_path: Path) -> None:
    right = lines_of("windowed")
    (tmp_path / "all").write_text("\n".join([*right, right[0]]))
    assert wrong("windowed", tmp_path).startswith("3,001 rows instead of 3,000")
    (tmp_path / "all").write_text("")
    assert "3,000 missing" in wrong("windowed", tmp_path)


def test_keys_are_even_in_each_half_of_the_stream() -> None:
    """Each of two readers of every second row sees all keys, so none can combine more than others."""
    for reader in (0, 1):
        keys, _, _ = FULL.columns(np.arange(reader, 2 * FULL.keys, 2))
        assert len(np.unique(keys)) == FULL.keys


def test_every_goal_has_its_ratio_and_missing_peers_have_none() -> None:
    report = peers_report()
    assert set(report["ratios"]) == set(bench.GOALS)
    assert report["ratios"]["sum_vs_flink_sql"] == pytest.approx(1 / 6)  # the faster of two ways
    without = peers_report(peers=False)
    assert without["ratios"] == {}
    assert without["settings"]["missing"]["bytewax"] == "bytewax is not installed: make peers"


def test_a_part_that_is_run_again_gets_more_rounds_unless_the_code_changed() -> None:
    whole, again = peers_report(), peers_results()["sum"]
    for round_ in again["sides"]["penstock"]["rounds"]:
        round_["rows_per_second"] = 3e5
    again["run"] |= {"dirty": False, "commit": "c"}
    whole["results"]["sum"]["run"] |= {"dirty": False, "commit": "c"}
    merged = bench.merged(whole, bench.report({"sum": again}))
    assert merged.results["sum"]["sides"]["penstock"]["rows_per_second"]["n"] == 2
    assert merged.ratios["sum_vs_bytewax"] == pytest.approx(2 / 9)
    assert merged.settings["parts"] == list(bench.PARTS)
    again["run"]["commit"] = "d"
    replaced = bench.merged(whole, bench.report({"sum": again}))
    assert replaced.results["sum"] == again


def test_peers_that_are_not_installed_are_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_PEERS", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_PEERS_FLINK", str(tmp_path))
    monkeypatch.setattr(bench, "run_side", lambda *_: {"rows_per_second": 5.0})
    monkeypatch.setattr(bench, "wrong", lambda *_: "")
    report = bench.run(print, quick=True, part=["sum"])
    assert set(report.results["sum"]["sides"]) == {"penstock", "native_hdfs", "native_rocksdb"}
    assert report.ratios == {}
    reasons = report.settings["missing"]
    assert set(reasons) == {
        "flink_sql",
        "flink_sql_batched",
        "flink_datastream",
        "bytewax",
        "pathway",
    }
    assert reasons["flink_sql"] == "pyflink is not installed: make peers"
    with pytest.raises(SettingError, match="no part nosuch"):
        bench.run(print, part=["nosuch"])


def test_a_side_with_a_wrong_answer_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "missing", lambda engine: "")
    monkeypatch.setattr(bench, "run_side", lambda *_: {"rows_per_second": 5.0})
    monkeypatch.setattr(
        bench, "wrong", lambda task, folder: "all" if "bytewax" in str(folder) else ""
    )
    report = bench.run(print, quick=True, part=["sum"])
    assert report.settings["missing"] == {"bytewax": "its answer is wrong: all"}
    assert "sum_vs_bytewax" not in report.ratios
    assert report.ratios["sum_vs_pathway"] == 1.0


def test_a_side_that_fails_or_hangs_is_an_error_with_its_reason(tmp_path: Path) -> None:
    broken = engines.Engine("broken", "nosuch_side", ("sum",))
    with pytest.raises(PenstockError, match=r"ended with 1: .*nosuch_side"):
        engines.run(broken, "sum", "time", 1, tmp_path / "a", 60)
    slow = engines.ENGINES["penstock"]
    with pytest.raises(PenstockError, match="took more than 0 s"):
        engines.run(slow, "sum", "time", 1, tmp_path / "b", 0.1)


def test_a_side_that_falls_behind_begins_again_at_a_lower_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, int]] = []

    def measured(arena: Any, name: str, rate: int, scale: Any) -> tuple[dict[str, Any], bool]:
        tried.append((name, rate))
        is_held = rate < 5_000 if name == "native_hdfs" else name != "bytewax"
        return {"p50_ms": 1.0, "p99_ms": 2.0, "rate": rate}, is_held

    @contextmanager
    def no_arena(show: Any) -> Iterator[LiveArena]:
        yield LiveArena(None, Path(), show)  # type: ignore[arg-type]

    monkeypatch.setattr(latency, "_measured", measured)
    monkeypatch.setattr(latency, "live_arena", no_arena)
    monkeypatch.setattr(latency, "missing", lambda engine: "")
    result = latency.run(print).results
    held = {name: sides[0]["rate"] for name, sides in result["sides"].items()}
    assert held["penstock_live"] == 10_000
    assert held["native_hdfs"] == 2_000
    assert held["python_state"] == 500
    assert [rate for name, rate in tried if name == "native_hdfs"] == [10_000, 2_000]
    assert result["missing"] == {"bytewax": "it holds none of 10000, 2000, 500 rows/s"}


@pytest.mark.parametrize("per_second", [2_000, 80_000, 900_000])
def test_a_start_that_takes_longer_than_the_rows_does_not_hide_their_rate(per_second: int) -> None:
    """With as many rows as the start takes time for, a rate would be one of starts."""
    jitter, ran = random.Random(1), list[int]()

    def run(rows: int) -> float:
        ran.append(rows)
        return 15.0 + jitter.uniform(-0.3, 0.3) + rows / per_second

    facts = timing.rate(run, 4.0, first=50_000, step=10_000)
    assert facts["rows_per_second"] == pytest.approx(per_second, rel=0.2)
    assert sum(ran) / per_second < 60
    assert len(ran) <= 7


def test_the_cost_of_the_first_rows_is_left_out() -> None:
    def run(rows: int) -> float:
        return 5.0 + min(rows, 100_000) / 2_000 + max(rows - 100_000, 0) / 50_000

    facts = timing.rate(run, 4.0, first=50_000, step=10_000, least=100_000)
    assert facts["rows_per_second"] == pytest.approx(50_000)


def test_a_rate_without_a_difference_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="the machine is too busy"):
        timing.rate(lambda rows: 15.0, 4.0, first=50_000)


@pytest.mark.parametrize(
    ("waits_ms", "is_held"),
    [
        ((50, 50, 50), True),
        ((900, 700, 1_400), True),  # triggers of a second that are not in step with the load
        ((100, 200, 400), False),  # 300 ms more every 8 s: it falls behind
        ((7_000, 7_000, 7_000), False),  # it never caught up with the warm-up
        ((50, 50, None), False),  # nothing of the last rows came
    ],
)
def test_a_rate_is_held_if_latency_does_not_grow(
    waits_ms: tuple[int | None, ...], is_held: bool
) -> None:
    second = 1_000_000
    rows = [
        (at + wait_ms * 1_000, at, 1, 1, 1)
        for third, wait_ms in enumerate(waits_ms)
        for at in range(third * 4 * second, (third + 1) * 4 * second, 10_000)
        if wait_ms is not None
    ]
    assert latency.held(np.array(rows), 0, 12 * second) == is_held


INSTALLED = [name for name, engine in engines.ENGINES.items() if not engines.missing(engine)]


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("task", ["sum", "windowed", "python_fn"])
def test_installed_sides_give_the_right_answer(name: str, task: str, tmp_path: Path) -> None:
    engine = engines.ENGINES[name]
    if task not in engine.tasks:
        pytest.skip("not a task of this side")
    engines.run(engine, task, "answer", 0, tmp_path / "side", 300)
    assert wrong(task, tmp_path / "side" / "answer") == ""
