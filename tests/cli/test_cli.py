"""Exit codes, errors and help of the `penstock` command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from penstock.cli import app as cli
from penstock.errors import SettingError
from penstock.model import DeadLetter
from penstock.state.store import dead_letters
from penstock.state.store.store import FORMAT, Store


def ends_with(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    code = leaving.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command, to which a test may add a verb; it is removed afterwards."""
    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    return cli.app


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("--version") == 0
    assert capsys.readouterr().out.startswith("penstock 0.")


def test_help_names_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("--help") == 0
    assert "doctor" in capsys.readouterr().out


def test_unknown_verb() -> None:
    assert ends_with("nosuch") == 2


def test_a_penstock_error_is_shown_without_traceback(
    verb: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    @verb.command()
    def fail() -> None:
        raise SettingError("the folder [x] is full", hint="free some space")

    assert ends_with("fail") == 2
    printed = capsys.readouterr().err
    assert printed == "SettingError: the folder [x] is full\nWhat to do: free some space\n"


def test_any_other_error_shows_its_traceback(verb: typer.Typer) -> None:
    @verb.command()
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_ctrl_c(verb: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    @verb.command()
    def wait() -> None:
        raise KeyboardInterrupt

    assert ends_with("wait") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_doctor_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("doctor", "--json", "--checkpoint", str(tmp_path)) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"name", "ok", "detail", "hint", "status"} == set(findings[0])
    assert findings[-1]["name"] == "checkpoint"


def test_doctor_that_finds_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("doctor", "--checkpoint", "nosuch://bucket") == 1
    assert "FAIL" in capsys.readouterr().out


_HEAVY = (
    *("pyspark", "pyarrow", "numba", "pandas", "numpy", "polars", "matplotlib", "rich"),
    *("starlette", "uvicorn", "psutil", "fsspec", "boto3", "grpc"),
)
_HELP = """
from contextlib import redirect_stdout
from io import StringIO
from penstock.cli.app import main
try:
    with redirect_stdout(StringIO()):
        main(["--help"])
except SystemExit as leaving:
    assert leaving.code == 0
"""


@pytest.mark.parametrize("code", ["import penstock", _HELP], ids=["import", "help"])
def test_nothing_heavy_is_imported(code: str) -> None:
    code += f"\nimport sys; print({set(_HEAVY)} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_python_m_penstock() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("penstock 0.")


def test_state_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(f"{tmp_path}/penstock")
    store.write_flow({"format": FORMAT, "id": "flow", "steps": []})
    for epoch in range(40):
        store.write_dead_letters(epoch, [DeadLetter("sum", str(epoch), "row", "no")])
    dead_letters.tidy(store, 35, 1 << 30)
    assert ends_with("state", "letters", str(tmp_path)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["key"] for line in lines] == [str(epoch) for epoch in range(40)]
