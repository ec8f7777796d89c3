"""Junctions: a step gets the same items as in an aligned execution, in whatever order hosts reply."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

from penstock.live.junction import InputRows, Item, Junction, Lane, LaneMark, Reach
from penstock.plan.watermarks import FREE
from penstock.wire.live import CheckpointMessage, Handing, Message, Part, Reroute

A, B = ("sum", "sum/0"), ("sum", "sum/1")


def checkpoint(number: int) -> Message:
    return Message(checkpoint=CheckpointMessage(number, number, -1))


def reroute(number: int, step: str, target: str = "x") -> Message:
    return Message(reroute=Reroute(number, step, (Handing((0,), "a", "", target, ""),)))


def two() -> Junction:
    return Junction("top", {A: LaneMark(None), B: LaneMark(None)})


def test_rows_behind_an_echo_wait_for_the_other_lanes() -> None:
    junction, saved = two(), checkpoint(0)
    assert junction.tell(saved) == []
    assert junction.echo(A, 0) == []
    assert junction.take(A, InputRows(0, "after")) == []
    assert junction.take(B, InputRows(0, "before")) == [InputRows(0, "before")]
    assert junction.echo(B, 0) == [saved, InputRows(0, "after")]
    assert junction.take(A, InputRows(0, "next")) == [InputRows(0, "next")]


def test_a_lane_may_be_two_checkpoints_ahead() -> None:
    junction = two()
    for number in (0, 1):
        junction.tell(checkpoint(number))
    junction.echo(A, 0)
    junction.echo(A, 1)
    assert junction.take(A, InputRows(0, "third")) == []
    assert junction.echo(B, 0) == [checkpoint(0)]
    assert junction.take(B, InputRows(0, "second")) == [InputRows(0, "second")]
    assert junction.echo(B, 1) == [checkpoint(1), InputRows(0, "third")]


def test_messages_about_hosts_keep_their_place_among_checkpoints() -> None:
    junction, mine, other = two(), reroute(1, "top"), reroute(2, "sum")
    assert junction.tell(checkpoint(0)) == []
    assert junction.tell(mine) == []
    assert junction.tell(other) == []
    junction.echo(A, 0)
    assert junction.echo(B, 0) == [checkpoint(0), mine]
    assert junction.passed == 2


def test_rows_of_a_host_that_joined_wait_for_checkpoints_before_it() -> None:
    junction, new = two(), ("sum", "sum/2")
    junction.tell(checkpoint(0))
    junction.tell(reroute(1, "sum", "sum/2"))
    junction.join(new, LaneMark(None), after=1)
    assert junction.take(new, InputRows(0, "second")) == []
    junction.echo(A, 0)
    assert junction.echo(B, 0) == [checkpoint(0), InputRows(0, "second")]
    junction.tell(checkpoint(2))
    junction.echo(A, 2)
    assert junction.echo(B, 2) == []
    assert junction.echo(new, 2) == [checkpoint(2)]


def test_a_host_that_leaves_holds_checkpoints_back_until_it_has_answered_all() -> None:
    junction = two()
    junction.tell(Message(part=Part(0, "sum", "sum/1")))
    assert junction.part(B, 0) == []
    junction.tell(checkpoint(1))
    assert junction.echo(A, 1) == []
    assert junction.take(B, InputRows(0, "its last")) == [InputRows(0, "its last")]
    assert junction.gone(B) == [checkpoint(1)]
    assert junction.reach == Reach(None, False, False)
    junction.take(A, LaneMark(7))
    assert junction.reach.watermark_ms == 7


def test_a_stream_that_ends_without_leave_delivers_nothing() -> None:
    junction = two()
    junction.tell(checkpoint(0))
    junction.echo(A, 0)
    assert junction.gone(B) == []


def test_time_is_the_least_of_all_lanes_and_waits_like_rows() -> None:
    source: Lane = (0, "")
    junction = Junction("top", {A: LaneMark(5), B: LaneMark(None), source: LaneMark(FREE)})
    assert junction.reach == Reach(None, False, False)
    junction.take(B, LaneMark(9))
    assert junction.reach == Reach(5, False, False)
    junction.tell(checkpoint(0))
    junction.echo(A, 0)
    junction.take(A, LaneMark(8))
    assert junction.reach.watermark_ms == 5
    junction.echo(source, 0)
    junction.echo(B, 0)
    assert junction.reach.watermark_ms == 8
    for lane in (A, B, source):
        junction.take(lane, LaneMark(FREE, final=True))
    assert junction.reach == Reach(None, True, True)


class Hosts:
    """The hosts of one step in a random execution: each replies to its input in order, at random times."""

    def __init__(self, step: str, names: list[str]) -> None:
        self.step = step
        self.inbox: dict[str, list[object]] = {name: [] for name in names}
        self.outbox: dict[Lane, list[object]] = {(step, name): [] for name in names}
        self.gone: set[str] = set()


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_replies_gives_the_result_of_an_aligned_execution(seed: int) -> None:
    """The flow has a source, two keyed steps and a sink. Hosts join and leave. Rows are numbers with their
    epoch."""
    chance = random.Random(seed)
    first, second = Hosts("one", ["a", "b"]), Hosts("two", ["x", "y", "z"])
    steps = {"one": first, "two": second}
    junctions = {
        "one": Junction("one", {(0, ""): LaneMark(FREE)}),
        "two": Junction("two", {("one", n): LaneMark(None) for n in ("a", "b")}),
        None: Junction(None, {("two", n): LaneMark(None) for n in ("x", "y", "z")}),
    }
    after: dict[str, str | None] = {"one": "two", "two": None}
    messages: list[Message] = []
    epoch = 0
    sent: dict[int, set[int]] = defaultdict(set)
    """Epoch -> rows that the source sent in it."""
    got: dict[str | None, dict[int, set[int]]] = {at: defaultdict(set) for at in ("two", None)}
    """Step 2, or the sink -> epoch -> rows that reached it."""
    at: dict[str | None, int] = {"one": 0, "two": 0, None: 0}

    def go_on(name: str | None, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, InputRows):
                if name is not None:
                    host = chance.choice(
                        [n for n in steps[name].inbox if n not in steps[name].gone]
                    )
                    steps[name].inbox[host].append(item.batch)
                if name != "one":
                    got[name][at[name]].add(item.batch)
                continue
            if item.checkpoint is not None:
                at[name] += 1
            if name is not None:
                pass_on(name, item)

    def pass_on(name: str, message: Message) -> None:
        hosts = steps[name]
        if message.reroute is not None:
            target = message.reroute.handings[0].target
            hosts.inbox[target], hosts.outbox[name, target] = [], []
            junctions[after[name]].join((name, target), LaneMark(None), message.number - 1)
        for host in [n for n in hosts.inbox if n not in hosts.gone]:
            hosts.inbox[host].append(message)
        if message.part is not None:
            hosts.gone.add(message.part.host)
            lane = (name, message.part.host)
            go_on(after[name], junctions[after[name]].part(lane, message.number))

    def tell(message: Message) -> None:
        messages.append(message)
        for name, junction in junctions.items():
            go_on(name, junction.tell(message))
        go_on("one", junctions["one"].echo((0, ""), message.number))

    def work() -> bool:
        """Let one host take one item, or one reply arrive."""
        ways = []
        for hosts in steps.values():
            ways += [(hosts, n, True) for n, todo in hosts.inbox.items() if todo]
            ways += [(hosts, lane[1], False) for lane, out in hosts.outbox.items() if out]
        if not ways:
            return False
        hosts, name, takes = chance.choice(ways)
        lane = (hosts.step, name)
        if takes:
            hosts.outbox[lane].append(hosts.inbox[name].pop(0))
            return True
        answer, reader = hosts.outbox[lane].pop(0), after[hosts.step]
        if isinstance(answer, Message):
            go_on(reader, junctions[reader].echo(lane, answer.number))
        else:
            go_on(reader, junctions[reader].take(lane, InputRows(0, answer)))
        return True

    joined = 0
    for row in range(300):
        event = chance.random()
        number = len(messages)
        if event < 0.06:
            epoch += 1
            tell(checkpoint(number))
        elif event < 0.08:
            joined += 1
            tell(reroute(number, chance.choice(["one", "two"]), f"n{joined}"))
        elif event < 0.1:
            hosts = chance.choice([first, second])
            known = {n for n in hosts.inbox if n not in hosts.gone}
            parting = {m.part.host for m in messages if m.part and m.part.step == hosts.step}
            left = sorted(known - parting)
            if len(left) > 1:
                tell(Message(part=Part(number, hosts.step, chance.choice(left))))
        else:
            sent[epoch].add(row)
            go_on("one", junctions["one"].take((0, ""), InputRows(0, row)))
        for _ in range(chance.randrange(4)):
            work()
    while work():
        pass
    for where, rows in got.items():
        assert {e: numbers for e, numbers in rows.items() if numbers} == dict(sent), where
    assert at == dict.fromkeys(at, epoch)


def test_a_lane_that_ends_behind_a_checkpoint_has_not_ended_before_it() -> None:
    """Otherwise a flow would end with an epoch that lacks the last output of its hosts."""
    junction = two()
    for number in (0, 1):
        junction.tell(checkpoint(number))
        junction.echo(A, number)
        junction.take(A, LaneMark(FREE, final=True))
    assert junction.take(B, LaneMark(FREE, final=True)) == []
    assert junction.echo(B, 0) == [checkpoint(0)]
    assert junction.ended_at is None
    assert junction.echo(B, 1) == [checkpoint(1)]
    assert junction.ended_at == 1


def test_time_does_not_pass_a_reroute_before_the_due_output_of_its_slots() -> None:
    """Host A was behind host B: timers of the slot that A had not fired, B fires late."""
    junction = two()
    junction.take(A, LaneMark(5))
    junction.take(B, LaneMark(9))
    junction.tell(reroute(0, "sum", B[1]))
    junction.echo(A, 0)
    junction.caught_up(A, 0)
    junction.take(A, LaneMark(9))
    assert junction.reach.watermark_ms == 5
    junction.echo(B, 0)
    assert junction.take(B, InputRows(0, "due at 7")) == [InputRows(0, "due at 7")]
    assert junction.reach.watermark_ms == 5
    junction.caught_up(B, 0)
    assert junction.reach.watermark_ms == 9


def test_a_reroute_of_another_step_does_not_hold_time() -> None:
    junction = two()
    junction.tell(reroute(0, "elsewhere"))
    junction.echo(A, 0)
    for lane in (A, B):
        junction.take(lane, LaneMark(9))
    assert junction.reach.watermark_ms == 9
