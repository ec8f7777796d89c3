"""The flows of the examples, over batches and without Spark. `tests/spark` runs whole examples."""

from __future__ import annotations

import ast
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock as ps
from penstock.cli import app as cli
from penstock.testing import FAULT_POINTS, Fault, FlowTester, assert_survives, source
from tests.examples import FOLDER, example

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KILL_A_HOST = [Fault("host.applied", "kill")]
EVENTS = "arrival timestamp, key long, value long"


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_clickstream_counts_clicks_in_windows() -> None:
    flow = example("clickstream").clicks(source(EVENTS))
    rows = [
        (after(second), user, page) for second in range(12) for user in (1, 2) for page in (7, 8)
    ]
    with FlowTester(flow) as tester:
        tester.run(rows)
        closed = tester.run().to_pylist()
        assert {(row["user"], row["window_start"], row["clicks"]) for row in closed} == {
            (user, after(begin), 4) for user in (1, 2) for begin in range(0, 10, 2)
        }
        assert {row["pages"] for row in closed} == {2}
    assert_survives(flow, [rows[:20], rows[20:]], KILL_A_HOST)


def test_join_tells_advertisements_that_were_clicked_from_others() -> None:
    join = example("join")
    flow = join.clicked(source(join.SHOWN), source(join.CLICKS))
    with FlowTester(flow) as tester:
        tester.run(
            left=[(1, "a", after(0)), (2, "a", after(1)), (3, "b", after(2))],
            right=[(1, after(3)), (3, after(30))],
        )
        (b, a) = sorted(tester.finish().to_pylist(), key=lambda row: -ord(row["site"]))
        assert (a["site"], a["shown"], a["clicked"]) == ("a", 2, 1)
        assert (b["site"], b["shown"], b["clicked"]) == ("b", 1, 0)


def test_ported_processor_reports_silent_sensors() -> None:
    flow = example("ported_processor").silent(source("sensor long, reading double"))
    with FlowTester(flow, now_ms=1_000) as tester:
        tester.run([(1, 0.5), (1, 0.7), (2, 3.0)])
        assert tester.advance("50s").num_rows == 0
        tester.run([(2, 4.0)])
        tester.restart()
        assert tester.advance("10s").to_pylist() == [
            {"sensor": 1, "last": 0.7, "silent_since": 1_000}
        ]
        assert tester.advance("1 minute").to_pylist() == [
            {"sensor": 2, "last": 4.0, "silent_since": 51_000}
        ]
        assert tester.state("process-1") == {}


@pytest.mark.parametrize("functions", [None, 0.5, 1.0])
def test_bursts_counts_the_same_words_with_functions_and_without(functions: float | None) -> None:
    bursts = example("bursts")
    flow = bursts.counted(source("text string"))
    step = flow.plan.keyed[0].id
    with FlowTester(flow, functions=functions, partitions=2, settings=ps.Settings()) as tester:
        tester.run([("To be or not to be",), ("that is the question",)])
        given = {row["word"]: row["n"] for row in tester.run([("be that",)]).to_pylist()}
        assert given == {"be": 3, "that": 2}
        assert len(tester.state(step)) == 8
        helped = sum(epoch.functions.rows for epoch in tester.progress)
        assert (helped > 0) == (functions is not None)


def test_own_policy_scales_in_the_simulator() -> None:
    policies = example("own_policy")
    outcome = policies.tried(policies.Halving(), seconds=240)
    assert outcome.treatments["scale_out"] > 0
    assert outcome.treatments["scale_in"] > 0
    assert 0.7 < outcome.success < 1
    assert outcome.hosts < 8


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_says_what_it_shows_and_how_to_run_it(file: Path) -> None:
    tree = ast.parse(file.read_text())
    told = ast.get_docstring(tree) or ""
    assert "Shows " in told
    assert f"python examples/{file.name}" in told
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


def python_blocks(page: str) -> list[str]:
    """The Python code of a page of docs/."""
    return re.findall(r"```python\n(.*?)```", (FOLDER.parent / "docs" / page).read_text(), re.S)


def test_the_page_on_testing_runs() -> None:
    names = {"ps": ps}
    (processor,) = (block for block in python_blocks("guide.md") if "class Sessions" in block)
    blocks = python_blocks("testing.md")
    for block in (processor, *blocks):
        exec(block, names)
    names["test_clicks"]()  # type: ignore[operator]
    assert len(blocks) == 3
    assert set(FAULT_POINTS) >= {"host.applied"}


def test_the_page_on_slas_shows_what_the_simulator_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (FOLDER.parent / "docs" / "sla.md").read_text()
    shown = re.findall(r"^    penstock (simulate .*)\n\n((?:    .*\n)+)", page, re.M)
    assert len(shown) == 4
    for command, output in shown:
        with pytest.raises(SystemExit) as leaving:
            cli.main(shlex.split(command))
        assert leaving.value.code == 0
        assert _timeless(capsys.readouterr().out) == _timeless(output)


def _timeless(table: str) -> list[list[str]]:
    """The words of each line, without the time that a decision took."""
    return [re.sub(r" +[\d.,]+ [mµ]s ", " ", line).split() for line in table.splitlines()]
