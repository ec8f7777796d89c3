"""The recipes of CONTRIBUTING.md: their code, as it is on the page, passes their tests."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.control.policies import parse
from penstock.flows import keyed_flow
from penstock.spark import sinks
from tests.examples import example

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
BLOCKS = dict(re.findall(r"```python\n# ([\w/.]+)[^\n]*\n(.*?)```", PAGE.read_text(), re.S))
"""File -> the code that the page has for it."""


def new_module(file: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A new file of the page, as a module that can be imported."""
    name = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(BLOCKS[file], file, "exec", dont_inherit=True), vars(module))
    return module


def added(file: str, module: ModuleType, **imports: Any) -> dict[str, Any]:
    """The names that a block adds to an existing module, which gets these imports."""
    names = vars(module) | imports
    code = "from __future__ import annotations\n" + textwrap.dedent(BLOCKS[file])
    exec(compile(code, file, "exec", dont_inherit=True), names)
    return {name: value for name, value in names.items() if vars(module).get(name) is not value}


def run_tests(file: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the tests of a block with the fixtures that they ask for. Returns their number."""
    module = new_module(file, monkeypatch)
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    for test in tests:
        test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})
    return len(tests)


def test_the_operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = new_module("src/penstock/operators/rate_limit.py", monkeypatch)
    plan = operator.RateLimitPlan
    method = added("src/penstock/flows/keyed_flow.py", keyed_flow, RateLimitPlan=plan)["rate_limit"]
    monkeypatch.setattr(keyed_flow.KeyedFlow, "rate_limit", method, raising=False)
    assert run_tests("tests/operators/test_rate_limit.py", request, monkeypatch) == 3


def test_the_policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.control.policies.halving", example("own_policy"))
    maker = added("src/penstock/control/policies/parse.py", parse)["_halving"]
    monkeypatch.setitem(parse._MAKERS, "halving", maker)
    assert run_tests("tests/control/policies/test_halving.py", request, monkeypatch) == 1


def test_the_sink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    live = new_module("src/penstock/live/sinks/sqlite.py", monkeypatch)
    names = added("src/penstock/spark/sinks.py", sinks, SqliteSink=live.SqliteSink)
    monkeypatch.setattr(sinks, "Sqlite", names["Sqlite"], raising=False)
    assert run_tests("tests/live/sinks/test_sqlite.py", request, monkeypatch) == 1


def test_every_block_is_run_and_every_named_file_is_there() -> None:
    text, root = PAGE.read_text(), PAGE.parent
    assert len(BLOCKS) == text.count("```python")
    named = set(re.findall(r"`((?:src|tests|docs|examples)/[\w/]+\.(?:py|md))`", text))
    named |= set(re.findall(r"\]\(((?:docs|examples)/[\w/]+\.\w+)\)", text))
    written = set(BLOCKS) | {"src/penstock/control/policies/halving.py"}
    assert not [file for file in named - written if not (root / file).exists()]
    assert all(len(line) <= 110 for line in text.splitlines())
