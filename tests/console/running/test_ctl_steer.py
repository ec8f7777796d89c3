"""Control, health and journal of a query from outside, with real calls to a driver's service."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from penstock import codec
from penstock.console.running.query import followed, journal
from penstock.control.journal.entry import Entry
from penstock.state.store.store import Store
from tests.console.running.steered_query import (
    Serve,
    epoch,
    functions,
    host,
    hot_key,
    interrupted,
    offload,
    run,
    running,
    step,
)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def entry(second: int, text: str = "") -> Entry:
    return Entry(1_750_000_000_000.0 + 1000 * second, second, "sum", "done", text or f"at {second}")


def test_steer_shows_the_settings_in_force(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good", host("sum/0")))
    times = ("--latency", "2s", "--window", "5 s", "--alert", "300ms")
    limits = ("--margin", "0.3", "--at-least", "2", "--at-most", "6")
    others = ("--policy", "drs(0.3)", "--dry-run")
    bursts = ("--functions-at-most", "5", "--patience", "1 minute")
    assert run("steer", str(tmp_path), *times, *limits, *others, *bursts) == 0
    assert query.orders == [
        {
            "latency_ms": 2000,
            "window_ms": 5000,
            "alert_ms": 300,
            "margin": 0.3,
            "at_least": 2,
            "at_most": 6,
            "policy": "drs(0.3)",
            "dry_run": True,
            "functions_at_most": 5,
            "patience_ms": 60_000,
        }
    ]
    shown = printed(capsys)
    assert "SLA average latency at most 2 s over any 5 s" in shown
    assert "policy drs(0.3) dry run: decisions are shown, not carried out" in shown
    assert "sum good 1 2 6 300 ms 30% 100%" in shown


def test_steer_back_in_earnest(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good", host("sum/0")))
    query.dry_run = True
    assert run("steer", str(tmp_path), "--no-dry-run") == 0
    assert query.orders == [{"dry_run": False}]
    assert "dry run" not in printed(capsys)


def test_steer_without_options_changes_nothing(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("severe", host("sum/0"), treating="balance: slots 1 from a to b"))
    assert run("steer", str(tmp_path)) == 0
    assert query.orders == [{}]
    assert "sum severe 1 1 8 500 ms 20% 100% balance: slots 1 from a to b" in printed(capsys)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--latency", "soon"], "FlowError: 'soon' is not a duration"),
        (["--margin", "1"], "SettingError: margin is 1"),
        (["--margin", "nan"], "SettingError: margin is nan"),
    ],
)
def test_steer_that_makes_no_sense(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    error: str,
) -> None:
    query = serve(sum=step("good"))
    before = json.dumps(query.steps)
    assert run("steer", str(tmp_path), *options) == 2
    assert capsys.readouterr().err.startswith(error)
    assert json.dumps(query.steps) == before


def test_steer_without_autoscaling(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(sum=step("good")).controlled = False
    assert run("steer", str(tmp_path), "--at-most", "2") == 2
    assert "autoscaling is off" in capsys.readouterr().err


def test_status_shows_health_and_hot_keys(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(
        sum=step(
            "severe",
            host("sum/0", "severe", projected_ms=None),
            host("sum/1"),
            hot_keys=[
                hot_key("user=42", "120 % of the capacity of a host"),
                hot_key("user=[7]", "and no treatment helps"),
            ],
        ),
        max=step(None, share=0.25),
    )
    query.progress = epoch(3)
    assert run("status", str(tmp_path)) == 0
    shown = printed(capsys)
    assert "policy switch(0.2)" in shown
    assert "sum severe 2 1 8 500 ms 20% 100%" in shown
    assert "max not known - 1 8 500 ms 20% 25%" in shown
    assert (
        "hot keys sum user=42 in slot 3, 1,200 records/s: 120 % of the capacity of a host" in shown
    )
    assert "sum user=[7] in slot 3, 1,200 records/s: and no treatment helps" in shown
    assert "state that moved in epoch 3" in shown


def test_status_shows_functions_and_money(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good", host("sum/0"), offload=offload(lasts=True)))
    query.functions, query.money = functions(), {"hosts": 0.02, "functions": 0.001}
    assert run("status", str(tmp_path)) == 0
    shown = printed(capsys)
    assert "spent 0.0210 USD: hosts 0.0200, functions 0.0010" in shown
    assert "functions up, at most 20; 1,200 invocations, 34.5 s" in shown
    assert "4 functions carry 700 of 2,000 records/s, 9 kept warm; the burst lasts: more" in shown
    query.functions = query.money = None
    assert run("status", str(tmp_path)) == 0
    assert "spent" not in printed(capsys)


def test_status_without_hot_keys(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good", host("sum/0")))
    assert run("status", str(tmp_path)) == 0
    assert "hot keys" not in printed(capsys)
    query.controlled = False
    assert run("status", str(tmp_path)) == 0
    assert "policy" not in printed(capsys)


def test_journal_of_a_running_query(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good"))
    query.journal = [entry(second) for second in range(30)]
    assert run("journal", str(tmp_path), "--last", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [entry(28).line(), entry(29).line()]


def test_journal_with_the_figures_of_hosts(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good"))
    figures = {"hosts": [host("sum/0", "severe", projected_ms=None)]}
    query.journal = [Entry(1000.0, 7, "sum", "decided", "severe", figures)]
    assert run("journal", str(tmp_path)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert run("journal", str(tmp_path), "--hosts") == 0
    line, below = capsys.readouterr().out.splitlines()
    assert line == query.journal[0].line()
    assert "sum/0" in below
    assert "cannot keep up" in below


def test_journal_as_json(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = serve(sum=step("good"))
    query.journal = [entry(1, "key ö=[1]"), entry(2)]
    assert run("journal", str(tmp_path), "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [codec.decode(line, Entry) for line in lines] == query.journal


def test_journal_of_a_query_that_has_ended(
    serve: Serve, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = serve(sum=step("good"))
    query.keep([entry(1)], [entry(2), entry(3)])
    store.remove_control()
    assert run("journal", str(tmp_path), "--last", "2") == 0
    assert capsys.readouterr().out.splitlines() == [entry(2).line(), entry(3).line()]


def test_journal_goes_back_before_the_query_was_started(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good"))
    query.keep([entry(1)], [entry(2)], [entry(5)])
    query.journal = [entry(5), entry(6)]
    assert journal(str(tmp_path), 20) == [entry(1), entry(2), entry(5), entry(6)]
    assert journal(str(tmp_path), 3) == [entry(2), entry(5), entry(6)]
    assert journal(str(tmp_path), 1) == [entry(6)]


def test_journal_followed_past_the_querys_end_and_a_new_start(
    serve: Serve, store: Store, tmp_path: Path
) -> None:
    query = serve(sum=step("good"))
    query.keep([entry(0)])
    query.journal = [entry(1), entry(2)]
    twin = Entry(entry(2).time_ms, 2, "sum", "began", "at the same time")

    def stop() -> None:
        store.remove_control()
        query.keep([entry(1), entry(2), twin, entry(3)])

    def start_again() -> None:
        query.journal = [entry(9)]
        query.listen()

    happens: list[Callable[[], object]] = [
        lambda: None,
        lambda: query.journal.append(twin),
        stop,
        start_again,
    ]

    def pause(_: float) -> None:
        if not happens:
            raise KeyboardInterrupt
        happens.pop(0)()

    shown = journal(str(tmp_path), 2)
    assert shown == [entry(1), entry(2)]
    following = followed(str(tmp_path), shown, pause)
    assert list(islice(following, 3)) == [twin, entry(3), entry(9)]
    with pytest.raises(KeyboardInterrupt):
        next(following)


def test_ctrl_c_ends_following(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good"))
    query.journal = [entry(1)]
    with running("journal", str(tmp_path), "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip("\n") == entry(1).line()
        query.journal.append(entry(2))
        assert process.stdout.readline().rstrip("\n") == entry(2).line()
        assert interrupted(process) == (130, "", "")
