from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli.simulate import simulate
from penstock.errors import SettingError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(simulate)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_policies_are_compared_in_a_table() -> None:
    result = run(
        "steady(1000)", "--duration", "30s", "--service-rate", "600",
        "--policy", "static(1)", "--policy", "static(3)",
    )  # fmt: skip
    assert result.exit_code == 0
    header, one, three = result.stdout.splitlines()
    assert header.split()[:3] == ["policy", "success", "worst"]
    assert one.split()[0] == "static(1)"
    assert float(one.split()[1].rstrip("%")) < 50
    assert three.split()[:4] == ["static(3)", "100.00%", "100.00%", "3.00"]


def test_json_holds_the_same_figures() -> None:
    result = run("steady(500)", "--duration", "20s", "--policy", "static(2)", "--json")
    (figures,) = json.loads(result.stdout)
    assert figures["policy"] == "static(2)"
    assert figures["success"] == 1.0
    assert figures["hosts"] == 2.0
    assert figures["arrived"] == pytest.approx(10_000, rel=0.05)


def test_the_journal_has_decisions_and_results(tmp_path: Path) -> None:
    file = tmp_path / "journal.txt"
    result = run(
        "steady(1000)", "--duration", "60s", "--service-rate", "500", "--journal", str(file),
        "--engine", "epochs", "--alert", "100ms", "--at-most", "8",
    )  # fmt: skip
    assert result.exit_code == 0
    lines = file.read_text().splitlines()
    assert lines[0] == "# switch"
    assert any("began" in line and "scale out" in line for line in lines)
    assert any("done" in line and "scale out" in line for line in lines)


def test_a_trace_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = [f"{m * 100},{m % 4},20" for m in range(300)]
    file.write_text("\n".join(["time_ms,slot,count", *rows]) + "\n")
    result = run("--trace", str(file), "--slots", "4", "--policy", "static(1)", "--json")
    (figures,) = json.loads(result.stdout)
    assert figures["arrived"] == 6000
    assert figures["success"] == 1.0


def test_a_flow_of_two_steps_shares_the_bound() -> None:
    result = run("wordcount", "--duration", "20s", "--latency", "2s", "--policy", "switch")
    _, whole, split, count = result.stdout.splitlines()
    assert whole.split()[0] == "switch"
    assert split.split()[:5] == ["split,", "50%", "of", "the", "bound"]
    assert count.split()[0] == "count,"


def test_functions_take_up_a_burst() -> None:
    burst = (
        "burst(2000, 5, 20s, 20s)", "--duration", "60s", "--service-rate", "1000", "--hosts", "3",
        "--at-least", "3", "--latency", "2s", "--start", "30s", "--epoch-cost", "100ms",
    )  # fmt: skip
    header, line = run(*burst, "--functions", "30").stdout.splitlines()
    assert header.split()[-3:] == ["functions", "their", "rows"]
    assert int(line.split()[-2]) > 5
    (figures,) = json.loads(run(*burst, "--functions", "30", "--json").stdout)
    (without,) = json.loads(run(*burst, "--engine", "epochs", "--json").stdout)
    assert figures["success"] > without["success"] + 0.2
    assert figures["hosts"] == 3.0
    assert figures["money"]["functions"] > 0
    assert "functions" not in without


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sine", "--trace", "some.csv"), "a workload and a trace"),
        (("tide",), "unknown workload 'tide'"),
        (("steady", "--policy", "magic"), "unknown policy 'magic'"),
        (("steady", "--engine", "steam"), "unknown engine 'steam'"),
        (("steady", "--engine", "continuous", "--functions", "5"), "for a continuous engine"),
        (("steady", "--journal", "no/such/folder/file"), "no such folder"),
    ],
)
def test_invalid_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        run(*arguments)
