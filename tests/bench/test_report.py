"""Reports of benches, and their goals. No bench is run here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli import app as cli
from penstock_bench import catalog
from penstock_bench.pipeline import bench as pipeline
from penstock_bench.report import Goal, Report, Sample, Show, judged

KEYS = ["bench", "commit", "dirty", "machine", "settings", "results", "ratios"]


def results() -> dict[str, object]:
    """Made-up results of `pipeline.run`, with round ratios."""

    def sides(penstock: float, hdfs: float, rocksdb: float, limit: float) -> dict[str, object]:
        rates = {
            "penstock": penstock,
            "native_hdfs": hdfs,
            "native_rocksdb": rocksdb,
            "limit": limit,
        }
        rounds_ms = {
            "penstock": [10.0, 20.0],
            "native_hdfs": [30.0, 50.0],
            "native_rocksdb": [40.0, 44.0],
        }
        return {
            side: {"rows_per_second": rate, "rounds_ms": rounds_ms.get(side, [9.0, 9.0])}
            for side, rate in rates.items()
        }

    return {
        "rows_10000": sides(100_000, 20_000, 25_000, 90_000),
        "rows_200000": sides(1_200_000, 400_000, 300_000, 1_000_000),
        "rows_1000000": sides(3_000_000, 1_000_000, 1_500_000, 2_500_000),
        "user_state": {"transform_with_state_in_pandas": {"10000": 500.0, "200000": 800.0}},
        "latency": {"penstock": {"p99_ms": 200.0}, "native": {"p99_ms": 1000.0}},
        "memory": {
            "host_mb_empty": 180.0,
            "bytes_per_key": 52.0,
            "bytes_per_key_of": {"string_sum": 81.0, "int_windowed": 60.0},
            "growth_mb": 1.5,
            "many_epochs": {"growth_mb": 0.5},
        },
        "processors": {
            "transform_with_state_in_pandas": {"20000": 500.0, "200000": 800.0},
            "transform_with_state": {"20000": 1_000.0},
            "apply_in_pandas_with_state": {"20000": 700.0},
            "processor": {"20000": 50_000.0, "200000": 200_000.0},
            "processor_compiled": {"200000": 800_000.0},
            "processor_vectorised": {"200000": 600_000.0},
            "call_us": {"median": 1.25},
        },
    }


def test_ratios_compare_with_the_better_native_store() -> None:
    assert pipeline.ratios(results()) == {
        "throughput_vs_native": 3.0,
        "throughput_vs_native_worst_round": 2.2,
        "trigger_vs_native": 0.25,
        "throughput_vs_tws_pandas": 1500.0,
        "throughput_vs_limit": 1.2,
        "trigger_vs_limit": 0.9,
        "p99_vs_native": 0.2,
        "throughput_vs_native_1m": 2.0,
        "host_mb_empty": 180.0,
        "bytes_per_key_int_sum": 52.0,
        "bytes_per_key_string_sum": 81.0,
        "bytes_per_key_int_windowed": 60.0,
        "mb_growth_over_many_epochs": 0.5,
        "host_mb_growth_over_epochs": 1.5,
        "processor_vs_tws": 200.0,
        "processor_compiled_vs_tws": 800.0,
        "processor_vectorised_vs_tws": 600.0,
        "processor_call_us": 1.25,
    }


def test_ratios_are_shown_for_each_round() -> None:
    def sides(**rounds_ms: list[float]) -> dict[str, object]:
        return {side: {"rounds_ms": medians} for side, medians in rounds_ms.items()}

    both = sides(
        penstock=[10.0, 20.0],
        limit=[8.0, 10.0],
        native_hdfs=[40.0, 50.0],
        native_rocksdb=[30.0, 60.0],
    )
    rounds = pipeline.rounds({f"rows_{rows}": both for rows in (10_000, 200_000, 1_000_000)})
    assert rounds["throughput_vs_native"] == rounds["throughput_vs_native_1m"] == [3.0, 2.5]
    assert rounds["trigger_vs_limit"] == [1.25, 2.0]
    assert rounds["throughput_vs_limit"] == [0.8, 0.5]


def test_every_goal_is_for_a_figure() -> None:
    assert set(pipeline.GOALS) <= set(pipeline.ratios(results()))


def test_a_report_carries_where_it_came_from() -> None:
    report = Report("pipeline", {"keys": 1}, {"rows_10000": {}}, {"throughput_vs_native": 3.0})
    facts = json.loads(report.to_json())
    assert list(facts) == KEYS
    assert {"cores", "memory_gb", "python", "pyspark", "pyarrow"} <= set(facts["machine"])


def test_sample() -> None:
    assert Sample.of([5.0, 1.0, 2.0, 9.0]) == Sample(3.5, 1.0, 9.0, 4)


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal(at_least=2.5), 2.5, True),
        (Goal(at_least=2.5), 2.49, False),
        (Goal(at_most=64), 64, True),
        (Goal(at_most=64), 65, False),
        (Goal(at_least=1, at_most=2), 3, False),
        (Goal(at_least=1), math.nan, False),
    ],
)
def test_goals(goal: Goal, value: float, met: bool) -> None:
    assert goal.met(value) is met


def drawn(figures: dict[str, float], goals: dict[str, Goal]) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(judged(figures, goals))
    return [line.split() for line in capture.get().splitlines()[1:]]


def test_figures_stand_beside_their_goals() -> None:
    goals = {"fast": Goal(at_least=2.5), "small": Goal(at_most=64), "late": Goal(at_most=1)}
    assert drawn({"fast": 3.14159, "small": 1234.5, "free": 0.5}, goals) == [
        ["fast", "3.14", "at", "least", "2.5", "met"],
        ["small", "1,234", "at", "most", "64", "missed"],
        ["free", "0.5"],
        ["late", "-", "at", "most", "1", "not", "measured"],
    ]


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_bench_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(show: Show, quick: bool) -> Report:
        show(f"[round 1] quick={quick}")
        return Report("mini", {}, {}, {"ratio": 2.0})

    monkeypatch.setitem(catalog.BENCHES, "mini", catalog.Bench(run, {"ratio": Goal(at_least=1)}))
    file = tmp_path / "report.json"
    assert leave("bench", "mini", "--quick", "--json", str(file)) == 0
    text = capsys.readouterr().out
    assert "[round 1] quick=True" in text
    assert "at least 1" in text
    assert json.loads(file.read_text())["ratios"] == {"ratio": 2.0}


def test_options_are_for_the_bench_that_has_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(show: Show, quick: bool, seed: int = 1) -> Report:
        return Report("mini", {}, {}, {"seed": float(seed)})

    monkeypatch.setitem(catalog.BENCHES, "mini", catalog.Bench(run, {}, options=("seed",)))
    assert leave("bench", "mini", "--seed", "7") == 0
    assert "7" in capsys.readouterr().out
    assert leave("bench", "mini", "--minutes", "2", "--seconds", "30") == 2
    assert "bench mini has no option --seconds, --minutes" in capsys.readouterr().err
    assert leave("bench", "load", "--seed", "7") == 2
    assert "options of this benchmark: none" in capsys.readouterr().err


def test_unknown_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("bench", "nosuch") == 2
    text = capsys.readouterr().err
    assert "there is no benchmark 'nosuch'" in text
    assert "pipeline" in text


def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave("bench", "pipeline", "--json", str(tmp_path / "no" / "such" / "x.json")) == 2
    assert "cannot write" in capsys.readouterr().err
