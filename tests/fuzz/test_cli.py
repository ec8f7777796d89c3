"""The `penstock` command with any arguments, on any files: an exit code and a message, no traceback."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cli import app as cli
from penstock.state.store.store import Store
from tests.fuzz.fuzzing import TIMES, fuzz
from tests.state.store.history import History

LEFT_OUT = {"demo", "bench", "nexmark", "doctor"}
"""These start Spark, or belong to another package."""
ENDLESS = {"--follow", "--vendor"}

WORDS = (
    "", " ", "x", "-1", "0", "1", "7", "99999999999999999999", "1e309", "nan", "-inf", "1s", "-1s", "1e9s",
    "..", "/", "~", "\t", "é\U0001f600", "x" * 5_000, "a,b", "0-5", "5-0", "0-99999999999", "step", "sum/0",
    "static(2)", "static(", "sine(", "sine(1,2,3,4,5)", "zipf(nan)", "hotspot()", "lazy(-1)", "batched(x)",
    "os:path", "json:nothing", "a:b:c", ":", "__import__('os')", "{}", "[", "\udcff", "--", "--json", "%s%n",
)  # fmt: skip


def _verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _verbs(inner, (*path, name))
        elif name not in LEFT_OUT:
            yield (*path, name), inner


VERBS = dict(_verbs(typer.main.get_command(cli.app)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders and files that are not what any verb wants, or only nearly."""
    root = tmp_path_factory.mktemp("files")
    (root / "empty").mkdir()
    made = {
        "file": b"\xff\xfe\x00garbage",
        "trace.csv": b"time_ms,slot,count\n1,x,3\n,,\n",
        "times.csv": b"time\nyesterday\n",
        "trace.parquet": b"PAR1garbagePAR1",
        "garbage/penstock/flow.json": b"{garbage",
        "wrong/penstock/flow.json": b'{"format": 2, "steps": 7, "id": []}',
        "list/penstock/flow.json": b"[1, 2]",
        "keys/penstock/flow.json": b'{"format": 2, "id": "x", "steps": [{"id": "s", "slots": -1}]}',
        "control/penstock/control.json": b'{"location": 5}',
        "nobody/penstock/control.json": b'{"location": "grpc://127.0.0.1:1", "pid": 1}',
        "journal/penstock/journal/000-0.jsonl": b'{"time_ms": "x"}\nnothing\n',
        "events/penstock/events/1/0.jsonl-gz": b"no gzip",
        "manifest/penstock/flow.json": b'{"format": 2, "id": "x", "steps": []}',
        "manifest/penstock/manifests/000000000000.json": b'{"format": 2, "checksum": 0}',
    }
    for name, data in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    history = History(Store(str(root / "real" / "penstock")))
    history.epoch({1: (1, "x"), 2: (2, "y")})
    kept = sorted(path for path in root.rglob("*") if "real" not in path.parts)
    return [str(root / "missing"), str(root / "real"), *map(str, kept), *map(str, root.iterdir())]


def run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """The exit code of the command, and what it printed."""
    told = io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with redirect_stdout(told), redirect_stderr(told):
            cli.main(arguments)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
        return code, told.getvalue()
    finally:
        os.chdir(before)
    raise AssertionError("the command did not end")


def arguments_of(verb: tuple[str, ...], data: st.DataObject, files: list[str]) -> list[str]:
    words = st.sampled_from(WORDS) | st.sampled_from(files) | st.text(max_size=6)
    given: list[str] = []
    for parameter in VERBS[verb].params:
        options = getattr(parameter, "opts", [])
        flag = getattr(parameter, "is_flag", False)
        if not options[0].startswith("-"):
            place = st.sampled_from(files) if parameter.name == "checkpoint" else words
            given.append(data.draw(place, label=str(parameter.name)))
        elif parameter.name not in ("help",) and data.draw(st.integers(0, 3)) == 0:
            if options[0] in ENDLESS:
                continue
            given.append(options[0])
            if not flag:
                given.append(data.draw(words, label=options[0]))
    if verb == ("ctl", "watch"):
        given.append("--once")
    if verb == ("simulate",):  # what makes sense would be simulated, for minutes
        given += ["--latency", "never"]
    return [*verb, *given]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_any_arguments(verb: tuple[str, ...], files: list[str], tmp_path: Path) -> None:
    @fuzz(8)
    @given(st.data())
    def any_arguments(data: st.DataObject) -> None:
        arguments = arguments_of(verb, data, files)
        code, told = run(arguments, tmp_path)
        assert code in (0, 1, 2), (arguments, told)
        assert "Traceback" not in told, (arguments, told)
        assert code == 0 or told.strip(), arguments

    any_arguments()


@fuzz(30)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=4))
@example(["--install-completion"])
def test_any_words(words: list[str]) -> None:
    if set(words) & LEFT_OUT:
        return
    code, told = run(words, Path("/"))
    assert code in (0, 1, 2), (words, told)
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "options",
    [
        ["--trace", "FILE"], ["--replay", "FILE"], ["steady", "--policy", "WORD"],
        ["steady", "--skew", "WORD"], ["steady", "--duration", "WORD"], ["WORD", "--duration", "1s"],
        ["steady", "--duration", "1s", "--functions", "WORD"], ["steady", "--switch", "WORD"],
        ["steady", "--duration", "1s", "--engine", "WORD"], ["steady", "--delta", "WORD"],
        ["steady", "--duration", "1s", "--start", "WORD"], ["steady", "--epoch-cost", "WORD"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_simulations_of_nonsense(options: list[str], files: list[str], tmp_path: Path) -> None:
    values = files if "FILE" in options else [word for word in WORDS if word not in SENSE]
    for value in values if TIMES > 1 else values[len(options) :: 9]:
        arguments = [value if word in ("FILE", "WORD") else word for word in options]
        code, told = run(["simulate", *arguments], tmp_path)
        assert code in (0, 1, 2), (arguments, told)
        assert "Traceback" not in told, (arguments, told)


SENSE = {"1s", "0", "1", "7", "1e9s", "99999999999999999999"}
"""Values with which a simulation may begin, and take its time."""
