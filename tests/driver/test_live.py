"""The driver of a live flow, over simulated hosts and couriers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import codec
from penstock.errors import HostLostError, ProtocolError, StepError
from penstock.faults import Fault, InjectedFault, armed
from penstock.plan.epoch import RouteTable
from penstock.settings import Settings
from penstock.state.store.store import Store
from tests.driver.pretended_live import STEP, A, B, C, CountedSource, pretended, until
from tests.trials.ledger import SLOTS


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(Store, "damage", lambda *_: "")  # No deltas are written here.
    return Store(str(tmp_path))


def positions(store: Store) -> dict[str, int]:
    """Position of the only source in the newest manifest."""
    manifest = store.read_manifest(max(store.epochs()))
    assert manifest is not None
    assert manifest.positions is not None
    return manifest.positions["0"]


def test_manifests_have_positions_and_go_on_after_a_restart(store: Store) -> None:
    with pretended(store) as flow:
        flow.start().pass_epochs(3)
        assert flow.stop() == "stopped"
        done = max(store.epochs())
    assert flow.couriers.checkpoints()[-1].last, "nothing is read behind the last checkpoint"
    assert positions(store) == {
        p: 100 * n + 10 * (done + 1) for n, p in enumerate(["p0", "p1", "p2"])
    }
    with pretended(store) as again:
        again.start().pass_epochs(1)
        order = again.couriers.orders[0]["courier/0"]
        assert (order.epoch, order.couriers) == (done + 1, 2)
        assert order.positions == {0: {"p0": 10 * (done + 1), "p2": 200 + 10 * (done + 1)}}


def test_a_checkpoint_that_takes_long_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.driver.awaiting._WORTH_TELLING_S", 0.1)
    with pretended(store, every_ms=1) as flow:
        flow.couriers.slow = {0}
        flow.start()
        until(lambda: flow.runner.waiting.startswith("epoch 0: waiting for hosts and the sink"))
        until(lambda: len(flow.couriers.checkpoints()) == 4)  # No further checkpoints begin.
        checkpoints = flow.couriers.checkpoints()
        flow.couriers.slow = set()
        for checkpoint in checkpoints:
            flow.couriers.passed(0, checkpoint)
        until(lambda: not flow.runner.waiting)


def test_manifests_come_in_order_while_several_checkpoints_are_under_way(store: Store) -> None:
    with pretended(store, every_ms=1) as flow:
        flow.hosts.slow = {B}
        flow.start()
        until(lambda: len(flow.couriers.checkpoints()) == 4)
        for epoch in (3, 1, 2):
            flow.hosts.sealed(B, epoch)
        assert store.epochs() == []
        assert [one.durable for one in flow.couriers.checkpoints()] == [-1] * 4
        flow.hosts.sealed(B, 0)
        until(lambda: len(flow.couriers.checkpoints()) > 4)
        assert flow.couriers.checkpoints()[4].durable == 3, "hosts learn what is durable"
        assert [one.epoch for one in flow.progress] == [0, 1, 2, 3]
        flow.hosts.slow = set()
        for (host, epoch), seal in list(flow.hosts.seals.items()):
            if not seal.done():
                flow.hosts.sealed(host, epoch)


def test_what_was_given_away_counts_before_what_is_owned(store: Store) -> None:
    with pretended(store) as flow:
        flow.start().pass_epochs(1)
    manifest = store.read_manifest(0)
    assert manifest is not None
    kinds = [ref.file.split("-")[1] for ref in manifest.deltas]
    assert kinds == ["away", "away", "own", "own"]


def test_starting_positions_are_kept_before_anything_is_read(store: Store) -> None:
    with pretended(store, source=CountedSource({"p0": 7})) as flow:
        flow.hosts.slow = {A}
        flow.start()
        until(lambda: flow.couriers.orders)
        flow.fail(StepError("no", step="sums", key="", row=""))
        with pytest.raises(StepError):
            flow.outcome.result(10)
    with pretended(store, source=CountedSource({"p0": 99, "p1": 5})) as again:
        again.start().pass_epochs(1)
        order = again.couriers.orders[0]
        assert order["courier/0"].positions == {0: {"p0": 7}}, "as the first start saw it"
        assert order["courier/1"].positions == {0: {"p1": 0}}, (
            "a new partition, from its first row on"
        )


def test_partitions_that_come_to_be_are_read_from_then_on(store: Store) -> None:
    starts = {"p0": 7, "p1": 7}
    with pretended(
        store, source=CountedSource(starts), settings=Settings(live_partitions_ms=1)
    ) as flow:
        flow.start().pass_epochs(1)
        starts["p2"] = 99
        until(lambda: len(flow.couriers.orders) > 1)
        flow.pass_epochs(2)
        read = flow.couriers.orders[1]
        places = {p: at for order in read.values() for p, at in order.positions[0].items()}
        newest = store.read_manifest(read["courier/0"].epoch - 1)
        assert newest is not None
        assert newest.positions is not None
        assert places == {**newest.positions["0"], "p2": 0}, "nothing is read again"
        assert {one.runs for one in flow.progress} == {1}, "nothing was undone"


# Slots that move


def test_a_move_is_a_message_and_a_slot_moves_once_in_an_epoch(store: Store) -> None:
    with pretended(store, every_ms=150) as flow:
        flow.start().pass_epochs(1)
        flow.relocation.move(STEP.id, [0], B)
        until(lambda: flow.couriers.reroutes())
        flow.relocation.move(STEP.id, [0, 1], A)
        flow.pass_epochs(3)
        epoch_of = {}
        at = 0
        for _, message in flow.couriers.messages:
            if message.checkpoint is not None:
                at = message.checkpoint.epoch + 1
            elif message.reroute is not None:
                for handing in message.reroute.handings:
                    for slot in handing.slots:
                        assert (slot, at) not in epoch_of, "a slot moved twice in an epoch"
                        epoch_of[slot, at] = (handing.source, handing.target)
        moves = [move for (slot, _), move in sorted(epoch_of.items()) if slot == 0]
        assert moves == [(A, B), (B, A)]
        numbers = [message.number for _, message in flow.couriers.messages]
        assert numbers == list(range(len(numbers)))
        assert ("rollback", 0, 0) not in flow.hosts.calls, "nothing stopped"


def test_a_manifest_has_the_routes_of_its_own_point(store: Store) -> None:
    """A move after a checkpoint is not in its manifest, even if that is written later."""
    with pretended(store, every_ms=100) as flow:
        flow.start().pass_epochs(1)
        flow.hosts.slow = {A, B}
        until(lambda: flow.couriers.checkpoints()[-1].epoch >= 1)
        flow.relocation.move(STEP.id, [0], B)
        until(lambda: flow.couriers.reroutes())
        before = flow.couriers.checkpoints()[-1].epoch
        flow.hosts.slow = set()
        for (host, epoch), seal in list(flow.hosts.seals.items()):
            if not seal.done():
                flow.hosts.sealed(host, epoch)
        flow.pass_epochs(3)
        owners = []
        for epoch in (before, before + 1):
            manifest = store.read_manifest(epoch)
            assert manifest is not None
            routes = codec.from_plain(manifest.routes[STEP.id], RouteTable)
            owners.append(routes.hosts[routes.owner[0]])
        assert owners == [A, B]


def test_scaling_out_and_in_goes_by_messages(store: Store) -> None:
    with pretended(store) as flow:
        flow.start().pass_epochs(1)
        flow.relocation.scale(STEP.id, 3)
        flow.pass_epochs(2)
        assert not flow.couriers.reroutes(), "the new host is not there"
        flow.hosts.up.add(C)
        until(lambda: flow.couriers.reroutes())
        ((_, reroute),) = flow.couriers.reroutes()
        assert {handing.target for handing in reroute.handings} == {C}
        assert ("join", C, 0, 2) in flow.hosts.calls
        flow.hosts.awaited = 1
        flow.relocation.scale(STEP.id, 2)
        until(lambda: len(flow.couriers.reroutes()) == 2)
        assert {h.source for h in flow.couriers.reroutes()[1][1].handings} == {C}
        flow.pass_epochs(3)
        assert ("remove", C) not in flow.hosts.calls, "others still ask it for state"
        flow.hosts.awaited = 0
        until(lambda: ("remove", C) in flow.hosts.calls)
        (part,) = [message.part for _, message in flow.couriers.messages if message.part]
        assert part.host == C
        later = [c for c in flow.couriers.checkpoints() if c.number > part.number]
        assert all((C, c.epoch) not in flow.hosts.seals for c in later)
        assert not flow.couriers.halted


def test_copies_are_not_freed_while_a_later_move_needs_them(store: Store) -> None:
    with pretended(store, every_ms=100) as flow:
        flow.start().pass_epochs(1)
        flow.hosts.slow = {A, B}
        flow.relocation.move(STEP.id, [0], B)
        until(lambda: flow.couriers.reroutes())
        moved = flow.couriers.checkpoints()[-1].epoch + 1
        until(lambda: flow.couriers.checkpoints()[-1].epoch >= moved)
        flow.relocation.move(STEP.id, [1], B)
        until(lambda: len(flow.couriers.reroutes()) == 2)
        for epoch in range(1, moved + 1):
            for host in (A, B):
                if not flow.hosts.seals[host, epoch].done():
                    flow.hosts.sealed(host, epoch)
        until(lambda: flow.progress[-1].epoch == moved)
        assert ("release", A) not in flow.hosts.calls
        flow.hosts.slow = set()
        for (host, epoch), seal in list(flow.hosts.seals.items()):
            if not seal.done():
                flow.hosts.sealed(host, epoch)
        until(lambda: ("release", A) in flow.hosts.calls)


@pytest.mark.parametrize(("migration", "most"), [("fluid", 1), ("batched(2)", 2)])
def test_so_many_slots_move_in_an_epoch(store: Store, migration: str, most: int) -> None:
    with pretended(store, migration=migration) as flow:
        flow.start().pass_epochs(1)
        flow.relocation.move(STEP.id, range(SLOTS // 2), B)
        until(lambda: not flow.relocation.pending)
        flow.pass_epochs(1)
        reroutes = [one for _, one in flow.couriers.reroutes()]
        assert [sum(len(h.slots) for h in one.handings) for one in reroutes] == [most] * (4 // most)
        assert all(one.whole for one in reroutes)


def test_pause_moves_between_two_runs_and_undoes_nothing(store: Store) -> None:
    with pretended(store, migration="pause") as flow:
        flow.start().pass_epochs(1)
        flow.relocation.move(STEP.id, [0, 1], B)
        until(lambda: not flow.relocation.pending)
        flow.pass_epochs(2)
        assert not flow.couriers.reroutes()
        assert ("assign", True) in flow.hosts.calls, "hosts have all of it before rows flow again"
        (last,) = [one for one in flow.couriers.checkpoints() if one.last]
        assert flow.couriers.orders[1]["courier/0"].epoch == last.epoch + 1
        assert [one.runs for one in flow.progress] == [1] * len(flow.progress)


# Losses


def test_a_lost_host_sends_all_back_to_the_newest_manifest(store: Store) -> None:
    with pretended(store, every_ms=100) as flow:
        flow.start().pass_epochs(2)
        flow.hosts.slow = {A, B}
        flow.relocation.move(STEP.id, [0], B)
        until(lambda: flow.couriers.reroutes())
        newest = flow.progress[-1].epoch
        assert 0 in flow.hosts.assigned[B]
        flow.hosts.slow = set()
        flow.hosts.die(B)
        until(lambda: len(flow.couriers.orders) == 2)
        assert ("rollback", newest, 0) in flow.hosts.calls
        order = flow.couriers.orders[1]["courier/0"]
        assert (order.run, order.epoch) == (1, newest + 1)
        assert order.positions[0]["p0"] == 10 * (newest + 1)
        assert flow.hosts.assigned == {A: frozenset(range(SLOTS))}, (
            "slots of the dead host are served"
        )
        assert [message.number for run, message in flow.couriers.messages if run == 1][:1] in (
            [0],
            [],
        )
        flow.pass_epochs(1)
        assert (flow.progress[-1].epoch, flow.progress[-1].runs) == (newest + 1, 2)
        flow.hosts.up.add(B)
        until(lambda: flow.hosts.assigned.get(B) and 0 in flow.hosts.assigned[B])
        assert len(flow.couriers.orders) == 2, "the slots go back without another run"
        flow.pass_epochs(1)


def test_a_lost_courier_gives_its_partitions_to_the_others_until_it_is_back(store: Store) -> None:
    with pretended(store) as flow:
        flow.start().pass_epochs(1)
        flow.couriers.up.discard("courier/1")
        until(lambda: len(flow.couriers.orders) == 2)
        (order,) = flow.couriers.orders[1].values()
        assert (order.couriers, set(order.positions[0])) == (1, {"p0", "p1", "p2"})
        flow.pass_epochs(2)
        flow.couriers.up.add("courier/1")
        until(lambda: len(flow.couriers.orders) == 3)
        assert len(flow.couriers.run) == 2
        assert flow.couriers.checkpoints()[-1].last or flow.couriers.orders[2], "in good order"
        lasts = [one.epoch for one in flow.couriers.checkpoints() if one.last]
        assert flow.couriers.orders[2]["courier/0"].epoch == lasts[0] + 1


@pytest.mark.parametrize("patience_ms", [0, 1_200])
def test_runs_without_a_manifest_between_them_are_bounded(store: Store, patience_ms: int) -> None:
    """Their number is bounded and, while a member cannot be reached, their time."""
    settings = Settings(epoch_runs=3, rpc_timeout_ms=patience_ms or 120_000)
    error = HostLostError("a link broke") if patience_ms else ProtocolError("a message too many")
    with pretended(store, settings=settings) as flow:
        flow.hosts.slow = {A}
        flow.start()
        runs = 0
        while not flow.outcome.done():
            until(lambda runs=runs: flow.outcome.done() or len(flow.couriers.orders) > runs)  # type: ignore[misc]
            runs = len(flow.couriers.orders)
            flow.fail(error)
        with pytest.raises(type(error), match=error.message):
            flow.outcome.result(10)
        assert runs == (5 if patience_ms else 3), "two more, with a pause of a second before each"


def test_runs_with_manifests_between_them_are_not(store: Store) -> None:
    with pretended(store, settings=Settings(epoch_runs=2)) as flow:
        flow.start()
        for _ in range(4):
            flow.pass_epochs(1)
            runs = len(flow.couriers.orders)
            flow.fail(HostLostError("a link broke"))
            until(lambda runs=runs: len(flow.couriers.orders) > runs)  # type: ignore[misc]
        flow.pass_epochs(1)


def test_an_error_of_user_code_ends_the_query(store: Store) -> None:
    with pretended(store) as flow:
        flow.start().pass_epochs(1)
        flow.fail(StepError("it divides by zero", step="sums", key="7", row=""))
        with pytest.raises(StepError, match="divides"):
            flow.outcome.result(10)


def test_an_ended_input_finishes_the_query(store: Store) -> None:
    with pretended(store) as flow:
        flow.couriers.ends_with = 2
        flow.start()
        assert flow.outcome.result(10) == "finished"
        assert store.epochs() == [0, 1, 2]


def test_windows_close_when_all_input_has_ended_and_slots_move_no_more(store: Store) -> None:
    with pretended(store, close=True) as flow:
        flow.couriers.ends_with = 2
        flow.start()
        assert flow.outcome.result(10) == "finished"
        checkpoints = [message.checkpoint for _, message in flow.couriers.messages]
        closing = [one.epoch for one in checkpoints if one is not None and one.closes]
        assert closing[0] > 2
        assert store.epochs()[-1] in closing


@pytest.mark.parametrize(
    "point", ["driver.begin", "driver.message", "driver.told", "driver.sealed", "driver.committed"]
)
def test_a_driver_that_dies_is_followed_by_one_that_goes_on(store: Store, point: str) -> None:
    with armed(Fault(point, hits=(2,))), pretended(store) as flow:
        flow.start()
        if point == "driver.begin":
            until(lambda: flow.couriers.orders)
            flow.fail(HostLostError("a link broke"))
        with pytest.raises(InjectedFault):
            flow.outcome.result(10)
    newest = max(store.epochs(), default=-1)
    with pretended(store) as again:
        again.start().pass_epochs(2)
        order = again.couriers.orders[0]["courier/0"]
        assert (order.epoch, order.positions[0]["p0"]) == (newest + 1, 10 * (newest + 1))
