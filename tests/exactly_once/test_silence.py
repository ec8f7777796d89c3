"""Hosts that are stopped, or that a courier cannot reach, are given up in time, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.courier import channels
from penstock.errors import HostLostError
from penstock.faults import FAULT_POINTS
from penstock.host import fetch
from penstock.wire.flight import AnswerWatch, Endpoint
from penstock.wire.messages import ChannelHeader
from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import Mishap, Request, Trial, Turn, everything, trial

QUICK = replace(
    SETTINGS,
    heartbeat_ms=100,
    host_lost_ms=1_000,
    rpc_timeout_ms=60_000,
    exchange_timeout_ms=60_000,
    compact_epochs=3,
)
"""Settings with a call timeout of a minute, so that waiting for it would fail the tests."""
LOST_S = QUICK.host_lost_ms / 1000
POINTS = [name for name in FAULT_POINTS if name.startswith("host.")]
QUICK_POINTS = ("host.assign", "host.channel", "host.serve", "host.seal", "host.compact")
MOVE = Request("move", 0, 0, tuple(range(SLOTS)))
BACK = Request("move", 0, 1, tuple(range(SLOTS // 2)))


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.01)


def await_fence(flow: Trial, host: str) -> None:
    """Resume a host that was given up, and wait until it has noticed."""
    flow.cluster.jobs.resume_given_up()
    until(lambda: host in flow.cluster.jobs.fenced)


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=[] if p in QUICK_POINTS else [pytest.mark.slow]) for p in POINTS],
)
def test_a_host_that_is_stopped_anywhere_is_given_up(tmp_path: Path, point: str) -> None:
    """The host stops in the middle of its work, while others wait for it or fetch from it. It cannot be
    killed: those who wait for it must give up their calls."""
    lazy = ("host.fetch", "host.fetched", "host.serve", "host.began")
    migration = "lazy(0)" if point in lazy else "all_at_once"
    with trial("ledger", str(tmp_path), migration=migration, settings=QUICK) as flow:
        flow.take(Turn(1))
        flow.take(Turn(2))
        began = time.monotonic()
        flow.take(Turn(3, requests=(MOVE,), mishaps=(Mishap(point, "stop"),)))
        took = time.monotonic() - began
        for seed in range(4, 8):
            request = BACK if seed % 2 else MOVE
            flow.take(Turn(seed, requests=(request,)))
        assert flow.fired[point] == 1
        assert took < LOST_S + 3, f"{took:.1f} s"
        flow.cluster.jobs.resume_given_up()
        flow.take(Turn(9))
        assert flow.cluster.deaths["driver"] == 0
        flow.check()


def test_a_stopped_host_that_goes_on_is_fenced_off(tmp_path: Path) -> None:
    """Its delta of the abandoned run may come late, and no manifest names it."""
    with trial("sums", str(tmp_path), hosts=2, settings=replace(QUICK, compact_epochs=99)) as flow:
        flow.take(Turn(1))
        runs = flow.take(Turn(2, mishaps=(Mishap("host.seal", "stop"),)))
        assert runs == 2
        (host,) = {"sums/0", "sums/1"} - set(flow.cluster.relocation.routes("sums").hosts)
        await_fence(flow, host)
        with suppress(AssertionError):  # on a busy machine it may have ended before
            until(lambda: bool(list(tmp_path.glob(f"deltas/sums/*1-0-*{host[-1]}-*"))))
        flow.take(Turn(3))
        flow.check()


def test_the_only_host_of_a_step(tmp_path: Path) -> None:
    """The epoch waits for the host's next incarnation, and the status says so."""
    with trial("sums", str(tmp_path), hosts=1, settings=QUICK) as flow:
        flow.take(Turn(1))
        flow.cluster.jobs.stop("sums/0")
        began = time.monotonic()
        with watching(flow) as status:
            flow.take(Turn(2))
        assert time.monotonic() - began < LOST_S + 3
        assert status.clear_of("epoch 1 run 1: waiting for")
        await_fence(flow, "sums/0")
        flow.check()


def test_a_host_that_is_stopped_while_nothing_happens(tmp_path: Path) -> None:
    """The host is given up although no call to it is open: the next epoch does not wait."""
    with trial("sums", str(tmp_path), hosts=3, settings=QUICK) as flow:
        flow.take(Turn(1))
        flow.cluster.jobs.stop("sums/1")
        until(lambda: flow.cluster.registry.host("sums/1") is None)
        began = time.monotonic()
        assert flow.take(Turn(2)) == 1
        assert time.monotonic() - began < LOST_S
        flow.check()


def test_a_query_ends_although_a_host_is_stopped(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path), hosts=2, settings=QUICK) as flow:
        flow.take(Turn(1))
        flow.cluster.jobs.stop("sums/1")
        began = time.monotonic()
        flow.cluster.fleet.stop()
        assert time.monotonic() - began < LOST_S + 2
        flow.cluster.fleet._members.clear()


# A link that is broken for good


@pytest.mark.parametrize("how", ["refused", "unanswered"])
def test_one_bad_link_does_not_use_up_the_runs_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The courier of partition 1 never reaches sums/1, in any incarnation; the driver does."""
    with trial("sums", str(tmp_path), hosts=3, settings=QUICK) as flow:
        flow.take(Turn(1))
        cut_link(monkeypatch, flow, partition=1, host="sums/1", hangs=how == "unanswered")
        runs = [flow.take(Turn(seed)) for seed in range(2, 6)]
        assert runs[0] == 3, "the first complaint is forgiven, the second is not"
        assert runs[1:] == [1, 1, 1], "its next incarnation is not trusted at once"
        assert flow.cluster.deaths["driver"] == 0
        flow.check()


def test_hosts_that_do_not_reach_each_other_read_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets between them are dropped while state moves; the driver reaches both, so neither is lost."""
    over = threading.Event()

    @contextmanager
    def unanswered(self: Endpoint, ticket: bytes, timeout_ms: int) -> Iterator[Any]:
        over.wait(timeout_ms / 1000)
        raise HostLostError("no answer", location=self.location)
        yield

    def mute_watch(endpoints: list[Endpoint], *args: float) -> AnswerWatch:
        return AnswerWatch([Mute(one) for one in endpoints], *args)  # type: ignore[misc]

    with trial("sums", str(tmp_path), hosts=2, migration="lazy", settings=QUICK) as flow:
        flow.take(Turn(1))
        flow.take(Turn(2))
        monkeypatch.setattr(Endpoint, "get", unanswered)
        monkeypatch.setattr(fetch, "AnswerWatch", mute_watch)
        began = time.monotonic()
        runs = flow.take(Turn(3, requests=(MOVE,)))
        took = time.monotonic() - began
        over.set()
        assert runs == 1
        assert took < 2 * LOST_S + 3, f"{took:.1f} s"
        flow.take(Turn(4, requests=(BACK,)))
        flow.check()


class Mute:
    """A connection on which no call is answered."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def call(self, action: str, timeout_ms: int, **arguments: Any) -> Any:
        raise HostLostError("no answer", location=self._endpoint.location)


def cut_link(
    monkeypatch: pytest.MonkeyPatch, flow: Trial, partition: int, host: str, hangs: bool
) -> None:
    """Cut a courier's link to a host: calls fail, or if it `hangs`, they get no answer."""
    init, read = channels.Channels.__init__, channels.Channels.answer
    watch = channels.Channels._watch

    def location() -> str | None:
        record = flow.cluster.registry.host(host)
        return None if record is None else record.location

    def opened(self: channels.Channels, header: ChannelHeader, *args: Any) -> None:
        init(self, header, *args)
        cut = header.partition == partition and location() in self._routes.endpoints
        self.cut = location() if cut else None  # type: ignore[attr-defined]

    def answer(self: Any, aside: Any) -> Any:
        if self.cut is not None and not hangs:
            raise HostLostError("the link is broken", location=self.cut)
        if self.cut is not None:
            until(lambda: self._broken is not None)
        return read(self, aside)

    def watched(self: Any) -> None:
        self._endpoints = [Mute(e) if e.location == self.cut else e for e in self._endpoints]
        watch(self)

    monkeypatch.setattr(channels.Channels, "__init__", opened)
    monkeypatch.setattr(channels.Channels, "answer", answer)
    monkeypatch.setattr(channels.Channels, "_watch", watched)


# Status and log


class StatusLines:
    """Lines of the status while an epoch ran."""

    def __init__(self) -> None:
        self.lines: set[str] = set()

    def clear_of(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextmanager
def watching(flow: Trial) -> Iterator[StatusLines]:
    status, over = StatusLines(), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            status.lines |= {flow.cluster.runner.waiting, *flow.cluster.fleet.waiting}

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield status
    finally:
        over.set()
        watcher.join()


def test_the_log_has_one_line_for_a_lost_host_and_one_for_another_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trial("sums", str(tmp_path), hosts=2, settings=QUICK) as flow:
        flow.take(Turn(1))
        with watching(flow) as status:
            flow.take(Turn(2, mishaps=(Mishap("host.applied", "stop"),)))
        flow.epoch(everything("sums"))
    hosts = [r.getMessage() for r in caplog.records if r.name == "penstock.hosts"]
    epochs = [r.getMessage() for r in caplog.records if r.name == "penstock.epochs"]
    assert len(hosts) == 1
    assert "is lost: it was silent for 1." in hosts[0]
    assert len(epochs) == 2
    assert epochs[0].startswith("Epoch 1 is run again (run 2): host sums/")
    assert epochs[1].startswith("All is well again after ")
    assert "is back, and epoch 1 is durable after 2 runs." in epochs[1]
    assert status.clear_of("epoch 1 run 1: waiting for couriers (1 s)")
