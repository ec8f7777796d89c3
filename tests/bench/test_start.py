"""`penstock bench start`: its arithmetic, from made-up starts. No session is started here."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock_bench.start import bench, trial


def start(start_ms: float, first_epoch_ms: float) -> dict[str, float]:
    return {"session_ms": 4000.0, "start_ms": start_ms, "first_epoch_ms": first_epoch_ms}


def made_up() -> dict[str, Any]:
    rounds = {
        "penstock": [start(500.0, 2000.0), start(700.0, 2400.0), start(600.0, 9000.0)],
        "native": [start(900.0, 1100.0)] * 3,
        "plain": [start(300.0, 1200.0)],
        "native_plain": [start(400.0, 600.0)],
    }
    sides = {side: bench.summed(phases) for side, phases in rounds.items()}
    return sides | {name: {"median": 0.1 * n} for n, name in enumerate(("import", "help"), 1)}


def test_ratios_count_from_the_call_of_start_on_both_sides() -> None:
    ratios = bench.ratios(made_up())
    assert ratios["first_epoch_s"] == 2.4  # the median, from the return of start()
    assert ratios["first_epoch_vs_native"] == pytest.approx(3100.0 / 2000.0)
    assert ratios["plain_first_epoch_vs_native"] == pytest.approx(1.5)
    assert (ratios["import_s"], ratios["help_s"]) == (0.1, 0.2)
    assert set(bench.GOALS) < set(ratios)


def test_the_sum_is_made_round_by_round() -> None:
    """The sum of two medians is not the median of the sums."""
    whole = bench.summed([start(100.0, 900.0), start(500.0, 100.0), start(300.0, 400.0)])
    assert whole["until_first_epoch_ms"]["median"] == 700.0
    assert whole["start_ms"]["median"] + whole["first_epoch_ms"]["median"] == 700.0
    odd = bench.summed([start(100.0, 900.0), start(900.0, 800.0), start(300.0, 100.0)])
    assert odd["until_first_epoch_ms"]["median"] == 1000.0


def test_the_phases_are_the_last_line_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def ran(words: list[str], **options: Any) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(returncode=0, stdout='a warning\n{"start_ms": 5.0}\n', stderr="")

    monkeypatch.setattr(subprocess, "run", ran)
    assert bench._start("plain") == {"start_ms": 5.0}
    assert asked[0][1:4] == ["-m", "penstock_bench.start.trial", "plain"]


def test_a_start_that_fails_or_hangs_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stdout="", stderr="no epoch 0: None")
    monkeypatch.setattr(subprocess, "run", lambda words, **options: failed)
    with pytest.raises(PenstockError, match="native did not start: no epoch 0"):
        bench._start("native")

    def hang(words: list[str], timeout: float, **options: Any) -> None:
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(PenstockError, match="native did not start within 300 s"):
        bench._start("native")


@pytest.mark.parametrize("side", trial.SIDES)
def test_only_penstocks_sessions_start_workers_ahead(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside Spark's own start, that would flatter the ratio. The settings of triggers are the same."""
    made: list[str] = []
    settings: dict[str, str] = {}

    def session(app: str, *, cores: int, conf: dict[str, str]) -> None:
        made.append("penstock")
        settings.update(conf)

    def configure(builder: Any) -> Any:
        made.append("native")
        settings.update(builder._options)
        return SimpleNamespace(getOrCreate=lambda: None)

    monkeypatch.setattr("penstock.session", session)
    monkeypatch.setattr("penstock.configure", configure)
    trial.session_of(side)
    native = side.startswith("native")
    assert made == ["native" if native else "penstock"]
    assert settings["spark.sql.shuffle.partitions"] == "2"
    own_daemon = settings.get("spark.python.daemon.module") == "pyspark.daemon"
    assert own_daemon == native
