"""Live hosts with real servers: two couriers, moves, checkpoints and faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import PenstockError, StaleRunError, find
from penstock.faults import Fault, armed
from penstock.wire.live import Frame, StreamHeader, Time
from tests.host.live_rig import KEYS, SLOTS, STEP, Rig, Stream, slots
from tests.offload.backends.waiting import until

ONES, TENS = [(key, 1) for key in KEYS], [(key, 10) for key in KEYS]
OF_SLOT = {slot: [k for k in KEYS if slots([k])[0] == slot] for slot in range(SLOTS)}


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(**getattr(request, "param", {}))
    made.begin()
    yield made
    made.end()


def all_received(rig: Rig, count: int, total: int, keys: list[int] = KEYS) -> None:
    """Wait until couriers have received this count and sum for all keys."""

    def received() -> bool:
        newest = rig.received()
        return all(newest.get(key) == (count, total) for key in keys)

    until(received)


def test_rows_are_applied_as_they_come(rig: Rig) -> None:
    rig.send(0, *ONES)
    all_received(rig, 1, 1)
    rig.send(1, *TENS)
    all_received(rig, 2, 11)
    until(lambda: all(rig.streams[c, h].took == c + 1 for c in (0, 1) for h in (0, 1)))
    takers = {h: {c for c in (0, 1) if rig.streams[c, h].rows} for h in (0, 1)}
    assert all(len(of) == 1 for of in takers.values()), "a host's rows go to one courier"


def test_a_checkpoint_waits_for_all_couriers(rig: Rig) -> None:
    rig.send(0, *ONES)
    message = rig.checkpoint()
    rig.tell(message, [0])
    rig.send(0, *ONES)
    rig.send(1, *TENS)
    all_received(rig, 2, 11)
    assert not any(stream.messages for stream in rig.streams.values())
    rig.tell(message, [1])
    all_received(rig, 3, 12)
    until(lambda: all(stream.messages == [0] for stream in rig.streams.values()))
    vitals = rig.seal(0)
    assert sum(v.rows for v in vitals) == 2 * len(KEYS)
    assert rig.stored(0) == dict.fromkeys(KEYS, (2, 11))


def test_a_slot_moves_while_all_others_go_on(rig: Rig) -> None:
    rig.send(0, *ONES)
    rig.send(1, *TENS)
    all_received(rig, 2, 11)
    before = list(rig.owners)
    message = rig.move((0,), 0, 1)
    rig.tell(message, [0])
    rig.send(0, *ONES)
    others = [key for slot in (1, 2, 3) for key in OF_SLOT[slot]]
    all_received(rig, 3, 12, others)
    assert rig.received()[OF_SLOT[0][0]] == (2, 11), (
        "its rows wait until no more rows can come to the old owner"
    )
    assert rig.streams[0, 1].took < rig.chunk
    after, rig.owners = rig.owners, before
    rig.send(1, *TENS)
    all_received(rig, 4, 22, others)
    all_received(rig, 3, 21, OF_SLOT[0])
    rig.tell(message, [1])
    rig.owners = after
    all_received(rig, 4, 22)
    rig.tell(rig.checkpoint())
    rig.seal(0)
    assert rig.stored(0) == dict.fromkeys(KEYS, (4, 22))


@pytest.mark.parametrize("options", [{"whole": True}, {"trickle_mb_s": 100.0}])
def test_a_slot_is_fetched_as_a_whole(rig: Rig, options: dict[str, Any]) -> None:
    rig.send(0, *ONES)
    rig.tell(rig.move((0, 2), 0, 1, **options))
    rig.send(1, *TENS)
    all_received(rig, 2, 11)
    residence = rig.servers[1].machine.residence
    until(lambda: not residence.any_partial)
    rig.send(1, *TENS)
    all_received(rig, 3, 21)


def test_all_hosts_roll_back_to_the_manifest(rig: Rig) -> None:
    """A rollback undoes a cut, a move and rows after it. Slots are owned as before."""
    rig.send(0, *ONES)
    rig.tell(rig.checkpoint())
    rig.seal(0)
    owners = list(rig.owners)
    rig.send(0, *TENS)
    rig.tell(rig.move((0, 2), 0, 1))
    rig.send(1, *TENS)
    all_received(rig, 3, 21)
    rig.tell(rig.checkpoint())
    rig.send(1, *TENS)
    all_received(rig, 4, 31)
    old = rig.streams[0, 0]
    rig.rollback(0)
    assert isinstance(find(old.error or ""), StaleRunError)
    rig.owners = owners
    rig.begin()
    rig.send(0, *ONES)
    all_received(rig, 2, 2)
    rig.tell(rig.move((0, 2), 0, 1))
    rig.send(1, *ONES)
    all_received(rig, 3, 3)
    rig.tell(rig.checkpoint())
    rig.seal(1)
    assert rig.stored(1) == dict.fromkeys(KEYS, (3, 3))


def test_a_stream_that_breaks_ends_the_run(rig: Rig) -> None:
    rig.send(0, *ONES)
    all_received(rig, 1, 1)
    rig.streams[0, 0].close()
    until(lambda: rig.streams[1, 0].error is not None)
    rig.rollback(-1)
    rig.begin()
    rig.send(0, *TENS)
    all_received(rig, 1, 10)


def test_a_stream_of_another_run_is_refused(rig: Rig) -> None:
    stream = Stream(rig.servers[0].location, StreamHeader(STEP, 7, 0, 2))
    until(lambda: stream.failed is not None)
    assert isinstance(stream.failed, StaleRunError)
    with pytest.raises(StaleRunError):
        rig.lines[0].call("join", 5_000, run=0, couriers=2)
    stream.close()
    rig.send(0, *ONES)
    all_received(rig, 1, 1)


def test_a_courier_that_leaves_is_not_waited_for(rig: Rig) -> None:
    rig.send(1, *ONES)
    for host in (0, 1):
        rig.streams[1, host].send(Frame(leave=True))
        rig.streams[1, host].done()
    rig.send(0, *TENS)
    rig.tell(rig.checkpoint(), [0])
    rig.seal(0)
    assert rig.stored(0) == dict.fromkeys(KEYS, (2, 11))


def test_all_couriers_end(rig: Rig) -> None:
    rig.send(0, *ONES)
    rig.time(0, Time(None, final=True))
    rig.time(1, Time(None, final=True))
    until(lambda: all(any(b.final for b in s.backs) for s in rig.streams.values()))
    all_received(rig, 1, 1)


@pytest.mark.parametrize("rig", [{"memory_limit": 1}], indirect=True)
def test_what_was_evicted_comes_back(rig: Rig) -> None:
    """With little memory, durable entries are evicted at each checkpoint, even while slots move."""
    halves = [[key for key in KEYS if key % 2 == half] for half in (0, 1)]
    vitals = []
    for turn in range(8):
        rig.send(turn % 2, *((key, 1) for key in halves[turn % 2]))
        if turn == 4:
            rig.tell(rig.move((0,), 0, 1))
        rig.tell(rig.checkpoint())
        vitals += rig.seal(turn)
        all_received(rig, turn // 2 + 1, turn // 2 + 1, halves[turn % 2])
    assert sum(v.evicted for v in vitals) > 2 * len(KEYS)
    assert rig.stored(7) == dict.fromkeys(KEYS, (4, 4))


@pytest.mark.parametrize("point", ["host.round", "host.fetch", "host.fetched", "host.serve"])
def test_a_fault_ends_the_run_and_nothing_counts_twice(rig: Rig, point: str) -> None:
    rig.send(0, *ONES)
    rig.tell(rig.checkpoint())
    rig.seal(0)
    owners = list(rig.owners)
    with armed(Fault(point)) as faults:
        rig.tell(rig.move((0, 2), 0, 1))
        rig.send(1, *TENS)
        until(lambda: faults.fired)
        if point == "host.serve":
            all_received(rig, 2, 11)  # the request is retried
        else:
            until(lambda: any(stream.error for stream in rig.streams.values()))
    rig.rollback(0)
    rig.owners = owners
    rig.begin()
    rig.send(1, *TENS)
    all_received(rig, 2, 11)
    rig.tell(rig.checkpoint())
    rig.seal(1)
    assert rig.stored(1) == dict.fromkeys(KEYS, (2, 11))


@pytest.mark.parametrize("point", ["host.seal", "host.sealed"])
def test_an_epoch_that_was_not_written_is_not_sealed(rig: Rig, point: str) -> None:
    rig.send(0, *ONES)
    with armed(Fault(point, where={"host": f"{STEP}/0"})):
        rig.tell(rig.checkpoint())
        with pytest.raises(PenstockError):
            rig.seal(0)
    rig.rollback(-1)
    rig.begin()
    rig.send(0, *TENS)
    rig.tell(rig.checkpoint())
    rig.seal(0)
    assert rig.stored(0) == dict.fromkeys(KEYS, (1, 10))


@pytest.mark.parametrize("seed", range(4))
def test_many_moves_and_rollbacks(rig: Rig, seed: int) -> None:
    """Each version has the sums of the rows before it, whatever happens."""
    chance = random.Random(seed)
    expected = {-1: dict.fromkeys(KEYS, 0)}
    counts, version, moved = dict(expected[-1]), -1, set[int]()
    sums = dict(counts)
    owners = {-1: list(rig.owners)}
    for _ in range(40):
        deed = chance.random()
        if deed < 0.6:
            pairs = [(chance.choice(KEYS), chance.randrange(100)) for _ in range(20)]
            rig.send(chance.randrange(2), *pairs)
            for key, value in pairs:
                counts[key] += 1
                sums[key] += value
        elif deed < 0.75:
            slot = chance.randrange(SLOTS)
            if slot not in moved:
                moved.add(slot)
                ways: list[dict[str, Any]] = [{}, {"whole": True}, {"trickle_mb_s": 100.0}]
                options = chance.choice(ways)
                rig.tell(rig.move((slot,), rig.owners[slot], 1 - rig.owners[slot], **options))
        elif deed < 0.9:
            rig.tell(rig.checkpoint())
            version = rig.epoch - 1
            rig.seal(version)
            expected[version], owners[version] = dict(sums), list(rig.owners)
            moved.clear()
            if chance.random() < 0.5:
                for line in rig.lines:
                    line.call("release", 5_000)
            stored = rig.stored(version)
            assert {key: total for key, (_, total) in stored.items()} == {
                key: total for key, total in sums.items() if counts[key]
            }
            kept = dict(counts)
        else:
            rig.rollback(version)
            sums = dict(expected[version])
            counts = dict(kept) if version >= 0 else dict.fromkeys(KEYS, 0)
            rig.owners = list(owners[version])
            moved.clear()
            rig.begin()
    rig.tell(rig.checkpoint())
    rig.seal(rig.epoch - 1)
    assert {k: v for k, (v, _) in rig.stored(rig.epoch - 1).items()} == {
        k: n for k, n in counts.items() if n
    }
