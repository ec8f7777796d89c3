"""Verbs and workloads of other packages: used if installed; otherwise the error names the package."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoints
from typing import Any

import pytest

from penstock import extensions
from tests.cli.test_cli import ends_with


@pytest.fixture
def product_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penstock without any other package."""

    def fail(module: str) -> Any:
        raise ImportError(module)

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **chosen: EntryPoints())
    monkeypatch.setattr(extensions, "import_module", fail)


def test_a_verb_is_found_without_its_entry_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkout that was installed before the verb was added."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **chosen: EntryPoints())
    assert ends_with("demo", "--help") == 0
    assert "--seconds" in capsys.readouterr().out


def test_help_lists_verbs_without_loading_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**chosen: Any) -> EntryPoints:
        raise AssertionError(chosen)

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    assert ends_with("--help") == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in ("demo", "bench", "nexmark"))


@pytest.mark.parametrize("words", [("bench", "--help"), ("nexmark", "generate", "--help")])
def test_an_installed_verb_shows_its_own_options(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(*words) == 0
    printed = capsys.readouterr().out
    assert f"penstock {' '.join(words[:-1])} [OPTIONS]" in printed


def test_an_installed_verb_ends_as_others_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("bench", "nosuch", "--quick") == 2
    assert "use one of: pipeline, migration, nexmark, switch" in capsys.readouterr().err
    assert ends_with("bench", "pipeline", "--slow") == 2


@pytest.mark.usefixtures("product_alone")
@pytest.mark.parametrize(
    "words",
    [
        *(("demo",), ("bench", "pipeline", "--quick"), ("bench", "--help")),
        *(("nexmark", "q0"), ("simulate",)),
    ],
)
def test_a_missing_package_is_named(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(*words) == 2
    printed = capsys.readouterr().err
    assert "in the package penstock-bench, which is not installed" in printed
    assert "make setup; elsewhere: pip install the file penstock_bench-*.whl" in printed


@pytest.mark.usefixtures("product_alone")
def test_other_workloads_need_no_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("simulate", "steady(100)", "--duration", "2s", "--json") == 0
    assert '"success"' in capsys.readouterr().out
