"""The page of `penstock ctl watch`: its content, and how it follows a query that ends, dies or restarts."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from penstock.console.running.page import Look, draw, line
from penstock.console.running.watch import Watcher, seen_epoch, watch
from penstock.control.journal.entry import Entry
from penstock.errors import SettingError
from tests.console.running.steered_query import (
    Serve,
    announce,
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


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def page(look: Look | None, width: int = 104) -> str:
    assert look is not None
    console = Console(width=width)
    with console.capture() as capture:
        console.print(draw("title", look, width))
    return capture.get()


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_page(serve: Serve, tmp_path: Path) -> None:
    query = serve(
        sum=step(
            "severe",
            host("sum/0", "severe", rate=930.0, latency_ms=640.0, projected_ms=None),
            host("sum/1", "moderate", service_rate=None, latency_ms=None, projected_ms=None),
            treating="scale out: slots 0-1 from sum/0 to sum/2",
            hot_keys=[hot_key("user=[42]", "too much for a host")],
        ),
        max=step(None, share=0.25, alert_ms=125.0),
    )
    query.journal = [Entry(1_750_000_000_250.0, 7, "sum", "host lost", "sum/9: it died")]
    query.progress = epoch(7, mean_ms=240.0)
    look = Watcher(str(tmp_path)).look()
    text = words(page(look))
    assert "running epoch 7 migration lazy(16) no slots pending policy switch(0.2)" in text
    assert "latency p50 216 ms p99 360 ms in epoch 7" in text
    assert "240 ms of 1,000 ms" in text
    assert "worst 240 ms" in text
    assert "SLA average latency at most 1 s over any 1 s kept" in text
    assert "sum severe 1 to 8 hosts, alert 500 ms, margin 20%" in text
    assert "in progress: scale out: slots 0-1 from sum/0 to sum/2" in text
    assert "93% 930/s 4 640 ms never" in text
    assert "- 300/s 4 - -" in text
    assert "max not known 1 to 8 hosts, alert 125 ms, margin 20%, 25% of the bound" in text
    assert "hot keys sum user=[42] in slot 3, 1,200 records/s: too much for a host" in text
    assert "decisions 15:06:40.250 sum host lost sum/9: it died" in text
    assert look is not None
    assert line(look) == (
        "running; epoch 7; latency 240 of 1,000 ms; sum severe on 2 hosts, "
        "scale out: slots 0-1 from sum/0 to sum/2, hot keys: user=[42]; max not examined yet"
    )


def test_page_follows_the_sla(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good", host("sum/0")))
    watcher = Watcher(str(tmp_path))
    query.progress = epoch(7, mean_ms=240.0)
    assert "kept" in page(watcher.look())
    query.sla["latency_ms"] = 200
    query.dry_run = True
    text = words(page(watcher.look()))
    assert "240 ms of 200 ms" in text
    assert "at most 0.2 s over any 1 s missed" in text
    assert "dry run: decisions are shown, not carried out" in text


def test_page_of_a_burst_that_functions_carry(serve: Serve, tmp_path: Path) -> None:
    query = serve(
        sum=step("good", host("sum/0"), offload=offload()),
        max=step("good", host("max/0"), offload=offload(functions=0, redirected=0.0)),
    )
    query.functions = functions(left_whole={"join": "its state does not merge"})
    query.money = {"hosts": 0.0175, "functions": 0.0042}
    query.progress = epoch(7)
    look = Watcher(str(tmp_path)).look()
    text = words(page(look))
    assert "spent 0.0217 USD: hosts 0.0175, functions 0.0042" in text
    assert "4 functions carry 700 of 2,000 records/s, 9 kept warm" in text
    assert text.count("functions carry") == 1
    assert "functions up, at most 20; 1,200 invocations, 34.5 s" in text
    assert "not for join: its state does not merge" in text
    assert look is not None
    assert line(look) == (
        "running; epoch 7; latency 240 of 1,000 ms; sum good on 1 host, 4 functions carry 700 of "
        "2,000 records/s, 9 kept warm; max good on 1 host; 0.0217 USD: hosts 0.0175, functions 0.0042"
    )


def test_page_of_functions_in_trouble(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good", host("sum/0")))
    used = {"invocations": 1, "seconds": 0.5, "failed": 3, "throttled": 4}
    query.functions = functions(state="failed", trouble="no such region", used=used)
    text = words(page(Watcher(str(tmp_path)).look()))
    assert "failed, at most 20; 1 invocation, 0.5 s; 3 failed, 4 refused; no such region" in text


def test_page_before_anything_is_known(serve: Serve, tmp_path: Path) -> None:
    serve(sum=step(None))
    look = Watcher(str(tmp_path)).look()
    text = words(page(look))
    assert "no epoch yet" in text
    assert "no rows yet" in text
    assert "not examined yet" in text
    assert "no decisions yet" in text
    assert look is not None
    assert line(look) == "running; no epoch yet; sum not examined yet"


def test_page_without_autoscaling(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good", host("sum/0")))
    query.controlled = False
    query.progress = epoch(1200, mean_ms=100.0)
    look = Watcher(str(tmp_path)).look()
    text = words(page(look))
    assert "latency p50 90 ms p99 150 ms in epoch 1,200" in text
    assert "sum/0 4711" in text
    assert "Autoscaling is off. Turn it on with .elastic()." in text
    assert look is not None
    assert line(look) == "running; epoch 1,200; latency 100 ms"


def test_page_with_many_hosts_shows_the_worst(serve: Serve, tmp_path: Path) -> None:
    calm = [host(f"sum/{n}", rate=float(n)) for n in range(100)]
    ill = [host("sum/100", "severe", rate=0.0), host("sum/101", "moderate", rate=0.0)]
    serve(sum=step("severe", *calm, *ill))
    text = page(Watcher(str(tmp_path)).look())
    shown = [f"sum/{n}" for n in range(102) if f" sum/{n} " in text]
    assert shown == [f"sum/{n}" for n in range(86, 102)]
    assert "and 86 more, no less healthy" in text


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("mean_ms", [50.0, 700.0, 4000.0])
def test_page_at_any_width(serve: Serve, tmp_path: Path, width: int, mean_ms: float) -> None:
    query = serve(sum=step("severe", *(host(f"sum/{n}", rate=2000.0) for n in range(4))))
    query.journal = [Entry(0.0, 7, "sum", "decided", "severe. " * 50)]
    query.progress = epoch(0, mean_ms)
    watcher = Watcher(str(tmp_path))
    look = watcher.look()
    assert look is not None
    for number in range(1, 400):
        seen = seen_epoch(epoch(number, mean_ms))
        assert seen is not None
        look.history.take(seen, window_ms=1000)
    text = page(look, width)
    assert max(map(len, text.splitlines())) <= min(width, 104)
    assert ("kept" if mean_ms <= 1000 else "missed") in text


def test_idle_query(serve: Serve, tmp_path: Path) -> None:
    query, clock = serve(sum=step("good", host("sum/0"))), Clock()
    query.progress = epoch(7)
    watcher = Watcher(str(tmp_path), clock)
    watcher.look()
    clock.now_s += 2.0
    assert "no new epoch" not in page(watcher.look())
    clock.now_s += 10.0
    assert "no new epoch for 12 s" in words(page(watcher.look()))
    query.progress = epoch(8)
    assert "no new epoch" not in page(watcher.look())


def test_a_query_that_does_not_answer_for_a_while(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good", host("sum/0")))
    query.progress = epoch(7)
    watcher = Watcher(str(tmp_path))
    assert watcher.look() is not None
    query.server.shutdown()
    look = watcher.look()
    assert "does not answer" in words(page(look))
    assert "sum/0" in page(look)
    assert look is not None
    assert "does not answer" in line(look)
    serve(sum=step("good", host("sum/0"))).progress = epoch(8)
    watcher.look()  # fails, but finds the query's new address
    look = watcher.look()
    assert look is not None
    assert (look.trouble, look.answer["status"]["epoch"]) == ("", 8)


def test_a_query_that_never_answered(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good"))
    query.server.shutdown()
    with pytest.raises(SettingError, match="does not answer"):
        Watcher(str(tmp_path)).look()


def test_a_query_that_died(serve: Serve, tmp_path: Path) -> None:
    query = serve(sum=step("good"))
    watcher = Watcher(str(tmp_path))
    watcher.look()
    query.server.shutdown()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    announce(query.store, query.server.location, gone.pid)
    with pytest.raises(SettingError, match="has died"):
        watcher.look()


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_ends_with_the_query(serve: Serve, tmp_path: Path, terminal: bool) -> None:
    query = serve(sum=step("good", host("sum/0")))
    query.progress = epoch(7)
    happens = [lambda: None, query.end]
    output = StringIO()
    console = Console(file=output, width=104, force_terminal=terminal, legacy_windows=False)
    watch(str(tmp_path), console, once=False, pause=lambda _: happens.pop(0)())
    text = output.getvalue()
    assert ("decisions" in text or "no decisions yet" in text) == terminal
    assert ("running; epoch 7; latency 240 of 1,000 ms; sum good on 1 host" in text) != terminal
    assert "has ended" in text


def test_once(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(sum=step("good", host("sum/0"))).progress = epoch(7)
    assert run("watch", str(tmp_path), "--once") == 0
    text = capsys.readouterr().out
    assert f"penstock: {tmp_path}"[:60] in text
    assert "240 ms of 1,000 ms" in text


def test_ctrl_c(serve: Serve, tmp_path: Path) -> None:
    serve(sum=step("good", host("sum/0"))).progress = epoch(7)
    with running("watch", str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("running; epoch 7")
        code, _, err = interrupted(process)
    assert (code, err) == (130, "")
