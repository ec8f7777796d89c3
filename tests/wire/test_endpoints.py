"""Connections to servers that are gone do not accumulate."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from penstock.courier import channels
from penstock.errors import HostLostError
from penstock.offload.backends import backend
from penstock.offload.backends.backend import invoker_at
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint, Endpoints, TokenServer
from tests.trials.trial import Request, Turn, trial


class Server(TokenServer):
    def __init__(self, token: str = "token") -> None:
        super().__init__(LOOPBACK, Access(token))
        self.actions = {"echo": lambda order: order}


def descriptors() -> int:
    return psutil.Process().num_fds()


def test_an_idle_connection_is_closed_when_another_is_opened() -> None:
    now = [0.0]
    with closing(Endpoints(Access("token"), clock=lambda: now[0], idle_s=60)) as kept:
        first, second = kept.at("grpc://127.0.0.1:1"), kept.at("grpc://127.0.0.1:2")
        now[0] = 50
        assert kept.at("grpc://127.0.0.1:2") is second
        now[0] = 61
        kept.at("grpc://127.0.0.1:3")
        assert len(kept) == 2
        assert kept.at("grpc://127.0.0.1:2") is second
        assert kept.at("grpc://127.0.0.1:1") is not first


def test_a_connection_with_a_running_call_stays_open() -> None:
    now = [0.0]
    with Server() as server, closing(Endpoints(Access("token"), clock=lambda: now[0])) as kept:
        endpoint = kept.at(server.location)
        with endpoint.hearing_errors():
            now[0] = 1000
            kept.at("grpc://127.0.0.1:1")
            assert endpoint.busy
            assert kept.at(server.location) is endpoint
        assert not endpoint.busy
        assert endpoint.call("echo", 5_000, a=1) == {"a": 1}


def test_a_failed_call_leaves_an_endpoint_idle() -> None:
    with closing(Endpoint("grpc://127.0.0.1:1", Access("token"))) as endpoint:
        with pytest.raises(HostLostError):
            endpoint.call("echo", 2_000)
        assert not endpoint.busy


def test_a_call_through_a_closed_connection_fails() -> None:
    with Server() as server:
        endpoint = Endpoint(server.location, Access("token"))
        endpoint.close()
        with pytest.raises(HostLostError):
            endpoint.call("echo", 2_000)


def test_connections_of_one_run_are_closed_together() -> None:
    kept = Endpoints()
    for token in ("a", "b"):
        for port in (1, 2):
            kept.at(f"grpc://127.0.0.1:{port}", Access(token))
    kept.close(Access("a"))
    assert len(kept) == 2
    kept.close()
    assert len(kept) == 0


def test_many_incarnations_leave_no_descriptors() -> None:
    now, counts = [0.0], []
    with closing(Endpoints(Access("token"), clock=lambda: now[0], idle_s=10)) as kept:
        for _ in range(40):
            with Server() as server:
                assert kept.at(server.location).call("echo", 5_000, a=1) == {"a": 1}
            now[0] += 6
            counts.append(descriptors())
            assert len(kept) <= 3
    assert max(counts[20:]) <= max(counts[5:15]) + 4, counts


def test_hosts_that_come_and_go_leave_no_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the driver, couriers and hosts, a connection to a new incarnation closes old ones."""
    with trial("sums", str(tmp_path), hosts=2) as flow:
        monkeypatch.setattr(channels._endpoints, "_idle_s", 0.2)
        monkeypatch.setattr(flow.cluster.fleet._endpoints, "_idle_s", 0.2)
        for seed in range(12):
            flow.take(Turn(seed, requests=(Request("kill", 0, seed),)))
            time.sleep(0.1)
        assert flow.cluster.deaths.total() >= 8
        assert len(channels._endpoints) <= 8
        assert len(flow.cluster.fleet._endpoints) <= 8


def test_invokers_of_runs_that_are_over_are_closed() -> None:
    def reach(run: str) -> str:
        return f"grpc://127.0.0.1:1 {run}"

    local = LocalFunctions()
    first = invoker_at(reach("first"), Access("first", functions=local))
    closed = []
    first.close = lambda: closed.append(1)  # type: ignore[method-assign]
    for number in range(backend._KEPT):
        invoker_at(reach(f"run-{number}"), Access("next", functions=local))
    assert closed == [1]
    assert len(backend._invokers) <= backend._KEPT
