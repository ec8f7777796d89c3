"""S3, beyond the tests of all stores: connections, errors at the start, faults."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.errors import CheckpointError, SettingError, StoreError
from penstock.faults import Fault, armed
from penstock.state.store.files import Files
from penstock.state.store.places import Place, below
from penstock.state.store.s3 import ConditionalPuts, s3_options
from penstock.state.store.store import Store
from penstock_bench.s3_faults import FaultProxy, Kind, S3Fault
from penstock_bench.s3_server import S3Server
from tests.state.conftest import on_s3
from tests.state.store.test_store import manifest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def place(s3: S3Server, proxy: FaultProxy) -> Place:
    """An empty folder behind the proxy."""
    return on_s3(s3, proxy.endpoint)


def test_a_uri_with_a_query(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    address = s3.endpoint.removeprefix("http://")
    query = f"endpoint_override={address}&scheme=http&region=us-east-1"
    folder = f"s3://bucket/by-query/?{query}"
    Store(below(folder, "penstock")).write_flow({"id": "flow", "format": 2, "steps": []})
    store, facts = open_checkpoint(folder)
    assert facts["id"] == "flow"
    assert store.uri == f"s3://bucket/by-query/penstock?{query}"
    assert Store(Place(store.uri, s3_options(s3.settings())[0])).read_flow() == facts
    keys = f"{s3.access_key}:{s3.secret_key}@"
    assert Store(below(folder.replace("//", f"//{keys}"), "penstock")).read_flow() == facts


def test_a_small_file_and_a_commit_take_few_requests(place: Place, proxy: FaultProxy) -> None:
    """Each request adds a round trip to an epoch."""
    store = Store(place)
    store.claim(0)
    proxy.clear()
    store.files.write("deltas/step/a.arrow", bytes(100_000))
    assert proxy.requests == {"PUT": 1}
    proxy.clear()
    store.write_manifest(manifest(0))
    assert proxy.requests == {"HEAD": 1, "PUT": 1}


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["error", "throttle", "reset", "lost", "skewed", "slow", "hang"])
@pytest.mark.parametrize("doing", ["write", "claim", "read"])
def test_temporary_faults_are_survived(
    place: Place, proxy: FaultProxy, kind: Kind, doing: str
) -> None:
    first = Store(place)
    first.claim(0)
    first.write_flow({"id": "x"})
    # Seconds: longer than a request may take.
    proxy.order(
        S3Fault(kind, count=2 if kind != "hang" else 1, seconds=12.0 if kind == "hang" else 0.3)
    )
    store = Store(place)
    if doing == "claim":
        store.claim(0)
        assert store.owner is not None
        assert store.owner.generation == 1
        with pytest.raises(CheckpointError, match="has started a flow"):
            first.must_own()
    elif doing == "write":
        store.write_flow({"id": "y"})
    proxy.clear()
    assert store.read_flow() == {"id": "y" if doing == "write" else "x"}


@pytest.mark.s3
def test_a_truncated_body_is_never_accepted(place: Place, proxy: FaultProxy) -> None:
    some = Files(place, lambda _: None)
    some.write("a", bytes(10_000))
    proxy.order(S3Fault("cut", method="GET", count=5))
    assert some.read("a") == bytes(10_000)
    proxy.order(S3Fault("cut", method="GET", count=5))
    assert some.open("a").size == 10_000


@pytest.mark.s3
def test_a_hanging_store_is_an_error_after_a_minute(place: Place, proxy: FaultProxy) -> None:
    """The duration of attempts counts, not only the pauses between them."""
    now = [0.0]
    some = Files(place, lambda _: None, clock=lambda: now[0])

    def later(_: object) -> None:
        now[0] += 25.0

    proxy.order(S3Fault("reset"))
    with (
        armed(Fault("store.write", later, hits=())),
        pytest.raises(StoreError, match=r"cannot write a.*check that the endpoint"),
    ):
        some.write("a", b"data")
    assert now[0] == 75.0


def test_of_concurrent_conditional_puts_one_succeeds(place: Place, proxy: FaultProxy) -> None:
    """Also if replies are lost."""
    proxy.order(S3Fault("lost", share=0.2, method="PUT"))
    each = [Files(place, lambda _: None) for _ in range(8)]
    assert all(one.excludes for one in each)
    barrier = threading.Barrier(8)

    def put(number: int) -> bool:
        barrier.wait()
        return each[number].put_if_absent("owners/0", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(put, range(8)))
    assert won.count(True) == 1
    assert each[0].read("owners/0") == b"%d" % won.index(True)


def test_without_boto3_the_last_writer_owns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts are not atomic then: both starts believe that they have the generation, and one finds out."""
    monkeypatch.setattr(ConditionalPuts, "possible", lambda _: False)
    one = Store(place)
    one.claim(0)
    assert one.owner is not None
    one.must_own()
    mine = one.files.read("owners/000000000000.json") or b""
    one.files.write("owners/000000000000.json", mine.replace(one.owner.mark.encode(), b"other"))
    with pytest.raises(CheckpointError, match="has started a flow"):
        one.write_manifest(manifest(0))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_store_without_conditional_puts_is_detected(
    place: Place, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """Such a store ignores the condition or rejects it."""
    monkeypatch.setattr("penstock.state.store.s3._unconditional", set())
    some = Files(place)
    assert some.excludes

    class Client:
        def put_object(self, **_: object) -> None:
            facts = {
                "ResponseMetadata": {"HTTPStatusCode": 501},
                "Error": {"Code": "NotImplemented"},
            }
            if refuses:
                raise ClientError(facts, "PutObject")

    monkeypatch.setattr(ConditionalPuts, "_open", lambda _: Client())
    assert some.put_if_absent("owners/0", b"mine")
    assert not some.excludes
    assert not Files(place).excludes
    assert not Files(place).put_if_absent("owners/0", b"another's")


@pytest.mark.s3
def test_a_wrong_configuration_is_reported_at_once_with_a_hint(s3: S3Server) -> None:
    def error(folder: str = "s3://bucket/x", **changes: str) -> str:
        settings = s3.settings() | {name.replace("_", "."): to for name, to in changes.items()}
        pauses: list[float] = []
        with pytest.raises(SettingError) as refused:
            Files(Place(folder, s3_options(settings)[0]), pauses.append).must_answer()
        assert sum(pauses) < 10
        assert not pauses or "endpoint" in changes
        return str(refused.value)

    assert "create the bucket" in error("s3://nosuchbucket/x")
    assert "check the keys" in error(access_key="nobody")
    assert "check the keys" in error(secret_key="wrong")
    assert "check that the endpoint" in error(endpoint="http://127.0.0.1:9")
    assert "check that the endpoint" in error(endpoint="http://nosuchhost.invalid:9")
    Files(on_s3(s3)).must_answer()


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("denied", "s3:ListBucket"), ("expired", "the session token has expired")],
)
def test_keys_that_become_invalid_are_not_retried(
    place: Place, proxy: FaultProxy, kind: Kind, hint: str
) -> None:
    pauses: list[float] = []
    some = Files(place, pauses.append)
    proxy.order(S3Fault(kind))
    with pytest.raises(StoreError, match=hint):
        some.write("a", b"data")
    assert pauses == []


def test_another_process_can_order_faults(proxy: FaultProxy, place: Place) -> None:
    def ask(method: str, body: bytes = b"") -> dict[str, dict[str, int]]:
        asked = urllib.request.Request(proxy.control, method=method, data=body or None)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read())

    ask("PUT", b'[{"kind": "error", "status": 503, "count": 1, "method": "PUT"}]')
    Files(place).write("a", b"data")
    assert ask("GET") == {"requests": {"PUT": 2}, "done": {"error": 1}}
    assert ask("DELETE") == {"requests": {}, "done": {}}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask("PUT", b'[{"kind": "nonsense"}]')
