"""`penstock nexmark`: what it refuses before it starts Spark, and the files it generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import ends_with


@pytest.fixture
def events(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    assert ends_with("nexmark", "generate", "--events", "100", "--output", str(folder)) == 0
    return folder


def test_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--events", "100", "--output", str(tmp_path), "--format", "parquet"]
    assert ends_with("nexmark", "generate", *options) == 0
    assert "2 person, 6 auction, 92 bid" in capsys.readouterr().out
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["auction.parquet", "bid.parquet", "person.parquet"]


def test_generate_the_same_again(events: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    options = ["nexmark", "generate", "--events", "100", "--output"]
    assert ends_with(*options, str(again)) == 0
    assert ends_with(*options, str(other), "--seed", "2") == 0
    bids = (events / "bid.ndjson").read_bytes()
    assert (again / "bid.ndjson").read_bytes() == bids
    assert (other / "bid.ndjson").read_bytes() != bids


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shape", "saw"], "Unknown shape 'saw'"),
        (["--format", "csv"], "Unknown format 'csv'"),
        (["--hot", "cold"], "Unknown kind of hot keys 'cold'"),
    ],
)
def test_generate_refuses(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["nexmark", "generate", "--events", "10", "--output", str(tmp_path / "x")]
    assert ends_with(*arguments, *options) == 2
    assert why in capsys.readouterr().err


def test_a_query_needs_input_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with("nexmark", "q0") == 2
    assert "--input" in capsys.readouterr().err


def test_no_such_query() -> None:
    assert ends_with("nexmark", "q23", "--input", "x", "--output", "x.parquet") == 2


def test_an_output_that_cannot_be_written(
    events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "rows.csv")
    assert ends_with("nexmark", "q0", "--input", str(events), "--output", output) == 2
    assert "use a name that ends in .parquet or .ndjson" in capsys.readouterr().err


def test_an_input_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, output = str(tmp_path / "nosuch"), str(tmp_path / "rows.parquet")
    assert ends_with("nexmark", "q0", "--input", missing, "--output", output) == 2
    assert "nosuch" in capsys.readouterr().err


def test_an_input_that_is_broken(
    events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (events / "bid.ndjson").open("a") as file:
        file.write("{no json\n")
    output = tmp_path / "rows.parquet"
    assert ends_with("nexmark", "q0", "--input", str(events), "--output", str(output)) == 2
    assert "bid.ndjson" in capsys.readouterr().err
    assert not output.exists()
