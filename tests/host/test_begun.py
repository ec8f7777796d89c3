"""Channels that begin before all their state has come, compared with channels that wait for nothing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ChangedInputError, ProtocolError
from penstock.host.held_rows import taken
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.host.pieces import Piecework, cut
from penstock.host.residence import Need, NeedDue, NeedKeys
from penstock.operators.operator import ROWS, Answer, EpochTime, OnError, Operator, StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.plan.assignment import Assignment, Incoming
from penstock.wire.messages import ChannelHeader
from tests.host.parted_trials import SLOTS, Channel, sent
from tests.host.test_machine import KEYS, Pair, header, rows, slot, totals
from tests.host.test_parted import JOINS, SIDES, SINGLE, random_rows
from tests.operators.join_trials import OneStream, in_one_stream, timed_epochs
from tests.operators.trials import Epoch, bag
from tests.operators.window_trials import epochs_of

ALL = tuple(range(SLOTS))


# -- the protocol


def moved_pair() -> tuple[Pair, HostMachine, int, int]:
    """Return two hosts between which slot 1 has moved, its new host, and keys: one there, one of the slot."""
    pair = Pair()
    pair.feed(*((k, k) for k in KEYS))
    pair.assign(0, (0,), (1, 2, 3))
    here = next(k for k in KEYS if slot(k) == 2)
    return pair, pair.hosts[1], here, next(k for k in KEYS if slot(k) == 1)


def begin(host: HostMachine, head: ChannelHeader, *pairs: tuple[int, int]) -> NeedKeys:
    need = host.needs(head, ROWS, rows(*pairs))
    assert isinstance(need, NeedKeys)
    assert host.apply_here(head, ROWS, rows(*pairs))
    return need


def test_rows_of_keys_that_are_here_are_applied_first() -> None:
    pair, host, here, away = moved_pair()
    head = header(1, 0, 10)
    need = begin(host, head, (away, 1), (here, 1), (away, 2))
    assert [len(keys) for _, keys in need.parts] == [1]
    assert host.operator.table.delta()["__key"].to_pylist() == [here]
    pair.bring(host, need)
    assert host.needs(head, ROWS, []) is None
    answer = host.close_channel(head, ROWS, rows((away, 1), (here, 1), (away, 2)))
    assert answer.batches == [], "updates come with the last channel"
    last = host.close_channel(header(1, 1, 11), ROWS, rows((here, 1)))
    assert totals(last.batches) == {here: (here + 2, 3), away: (away + 3, 3)}
    _, vitals = host.seal(1, 0, 2)
    assert vitals.rows == 4


def test_another_attempt_applies_only_the_rest() -> None:
    pair, host, here, away = moved_pair()
    pairs = ((here, 1), (away, 1))
    first, again = (replace(header(1, 0, attempt, partitions=1), rows=2) for attempt in (10, 11))
    begin(host, first, *pairs)
    need = host.needs(again, ROWS, rows(*pairs))
    assert isinstance(need, NeedKeys)
    assert not host.apply_here(again, ROWS, rows(*pairs)), "all that is here was applied before"
    pair.bring(host, need)
    answer = host.close_channel(again, ROWS, rows(*pairs))
    assert totals(answer.batches) == {here: (here + 1, 2), away: (away + 1, 2)}
    assert host.close_channel(first, ROWS, rows(*pairs)) is answer


def test_another_attempt_with_other_rows_is_refused() -> None:
    pair, host, here, away = moved_pair()
    need = begin(host, replace(header(1, 0, 10), rows=2), (here, 1), (away, 1))
    pair.bring(host, need)
    with pytest.raises(ChangedInputError, match="had 2 rows, and 3 when"):
        host.close_channel(replace(header(1, 0, 11), rows=3), ROWS, [])


def test_a_channel_that_closes_another_does_so_when_an_attempt_sends_both() -> None:
    """The first attempt has all rows in its first channel, the second sends some through burst workers."""
    pair, host, here, away = moved_pair()
    alone = replace(header(1, 0, 10, partitions=2), alone=True)
    need = begin(host, alone, (here, 1), (away, 1))
    pair.bring(host, need)
    assert host.close_channel(header(1, 1, 11), ROWS, rows((away, 1))).batches == []
    answer = host.close_channel(header(1, 0, 11), ROWS, rows((here, 1)))
    assert totals(answer.batches) == {here: (here + 1, 2), away: (away + 1, 2)}
    assert host.close_channel(alone, ROWS, rows((here, 1), (away, 1))) is answer


def test_a_failure_in_the_rest_leaves_the_rest_to_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, host, here, away = moved_pair()
    head = header(1, 0, 10, partitions=1)
    pair.bring(host, begin(host, head, (here, 1), (away, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(host.operator, "apply", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            host.close_channel(head, ROWS, [])
    answer = host.close_channel(replace(head, attempt=11), ROWS, [])
    assert totals(answer.batches) == {here: (here + 1, 2), away: (away + 1, 2)}


def into(pieces: int) -> Callable[[int], int]:
    """Cut any number of rows into this many pieces."""
    return lambda rows: pieces


def test_rows_that_are_here_are_applied_in_pieces_by_any_attempt() -> None:
    pair, host, here, away = moved_pair()
    more = [k for k in KEYS if slot(k) in (2, 3) and k != here]
    first, again = (header(1, 0, attempt, partitions=1) for attempt in (10, 11))
    pairs = [(k, 1) for k in (here, away, *more, here)]
    need = host.needs(first, ROWS, rows(*pairs))
    assert isinstance(need, NeedKeys)
    counts = [
        host.apply_here(head, ROWS, rows(*pairs), into(100)) for head in (first, again, first)
    ]
    assert all(counts)
    assert sum(counts) < len(pairs) - 1
    pair.bring(host, need)
    answer = host.close_channel(again, ROWS, rows(*pairs))
    wanted = {k: (k + 1, 2) for k in (away, *more)} | {here: (here + 2, 3)}
    assert totals(answer.batches) == wanted
    assert host.close_channel(first, ROWS, rows(*pairs)) is answer


def test_no_piece_of_an_older_run_is_applied() -> None:
    """Between two pieces the lock is free: the run may be given up, and the next one begin."""
    pair, host, here, away = moved_pair()
    old = header(1, 0, 10, partitions=1)
    begin(host, old, (here, 100), (away, 100))
    for other in pair.hosts:
        other.rollback(0, 0)
    assert not host.apply_here(old, ROWS, rows((here, 100)))
    new = header(1, 0, 12, run=1, partitions=1)
    need = begin(host, new, (here, 1), (away, 1))
    assert not host.apply_here(old, ROWS, rows((here, 100)))
    pair.bring(host, need)
    answer = host.close_channel(new, ROWS, [])
    assert totals(answer.batches) == {here: (here + 1, 2), away: (away + 1, 2)}


def in_pieces(host: HostMachine, head: ChannelHeader, channel: Channel, fails: bool) -> Answer:
    """Close a channel in pieces. If it `fails`, they are undone first, after some or all were applied."""
    for failure in (True, False) if fails else (False,):
        kind, batches = host.unapplied(head, *channel)
        host.begin_channel(head)
        made = cut(host.operator, kind, batches, 1000)
        host.divided(head, made)
        work = Piecework(head, kind, deque(made), host.mark())
        for piece in made[: -(-len(made) // 2)] if failure else made:
            work.answers.append(host.operator.apply(kind, piece.batches))
            work.rows += piece.rows
        if failure:
            host.undo(work.mark)
    return host.close_pieces(work)


@pytest.mark.parametrize("fails", [False, True])
def test_the_rest_is_applied_in_pieces_and_undone_alone(fails: bool) -> None:
    """The header of the attempt that began counts, and the answer has what was applied at first."""
    pair, host, here, away = moved_pair()
    other = next(k for k in KEYS if slot(k) == 1 and k != away)
    pairs = ((here, 1), (away, 1), (other, 1), (away, 1))
    first, again = (replace(header(1, 0, attempt, partitions=1), rows=4) for attempt in (10, 11))
    pair.bring(host, begin(host, first, *pairs))
    answer = in_pieces(host, again, (ROWS, rows(*pairs)), fails)
    wanted = {here: (here + 1, 2), away: (away + 2, 3), other: (other + 1, 2)}
    assert totals(answer.batches) == wanted
    assert host.close_channel(first, ROWS, rows(*pairs)) is answer
    with pytest.raises(ProtocolError, match="twice"):
        host.close_channel(again, ROWS, rows(*pairs))
    _, vitals = host.seal(1, 0, 1)
    assert vitals.rows == 4


def test_an_attempt_with_other_rows_is_refused_before_its_pieces() -> None:
    pair, host, here, away = moved_pair()
    pair.bring(host, begin(host, replace(header(1, 0, 10), rows=2), (here, 1), (away, 1)))
    with pytest.raises(ChangedInputError, match="had 2 rows, and 3 when"):
        host.begin_channel(replace(header(1, 0, 11), rows=3))


def test_a_rollback_undoes_what_a_channel_has_begun() -> None:
    pair, host, here, away = moved_pair()
    begin(host, header(1, 0, 10), (here, 100), (away, 100))
    for other in pair.hosts:
        other.rollback(0, 0)
    again = header(1, 0, 12, run=1, partitions=1)
    pair.bring(host, begin(host, again, (here, 1), (away, 1)))
    answer = host.close_channel(again, ROWS, [])
    assert totals(answer.batches) == {here: (here + 1, 2), away: (away + 1, 2)}


# -- any step


class Moving:
    """A step whose slots all move to a new host before each epoch. Its state comes while channels wait."""

    def __init__(self, plan: StepPlan, parts: int, pick: np.random.Generator) -> None:
        on_error: OnError = "dead_letter" if isinstance(plan, ProcessPlan) else "fail"
        step = plan.plan if isinstance(plan, OneStream) else plan
        self.pick, self.begun = pick, 0

        def plain() -> Any:
            return step.operator(SLOTS, "step", on_error)

        def operator() -> Any:
            return PartedOperator(plain, parts, workers=1, chunk_rows=7) if parts > 1 else plain()

        self.make = operator
        self.old = HostMachine(operator())
        self.old.assign(Assignment(-1, ALL))

    def move(self, version: int) -> HostMachine:
        """Move all slots to a new host. Some of them come at once."""
        new = HostMachine(self.make())
        self.old.assign(Assignment(version, ()))
        incoming = (Incoming(ALL, "old"),) if version >= 0 else ()
        new.assign(Assignment(version, ALL, incoming, trickle_mb_s=1.0))
        self.bring_slots(new, int(self.pick.integers(0, SLOTS)))
        return new

    def bring_slots(self, new: HostMachine, most: int) -> None:
        for _ in range(most):
            if (wanted := new.wanted()) is None or wanted.source is None:
                return
            entries = self.old.copies.of_slot(wanted.slot, wanted.source.version)
            found = self.old.operator.table.export(entries)
            assert new.install(wanted, new.operator.table.codec.from_storage(found["__key"]), found)
            new.complete_slot(wanted)

    def bring(self, new: HostMachine, need: Need) -> None:
        codec = new.operator.table.codec
        if isinstance(need, NeedDue):
            ((_, slots),) = need.parts
            found, after = self.old.copies.of_due(slots, need.limits, need.version)
            assert new.install(need, codec.from_storage(found["__key"]), found)
            new.none_due_before(need, after)
        elif isinstance(need, NeedKeys):
            for _, keys in need.parts:
                found, unknown = self.old.copies.of_keys(keys, need.version)
                assert not len(unknown)
                new.install(need, keys, found)

    def epoch(
        self, time: EpochTime, channels: list[Channel], mixed: bool
    ) -> tuple[list[Answer], pa.Table]:
        """Run an epoch. If `mixed`, channels begin and are closed in any order."""
        new, turns = self.move(time.epoch - 1), [[channel] for channel in range(len(channels))]
        if mixed:
            turns = [self.pick.permutation(len(channels)).tolist()]
        answers = {}
        for turn in turns:
            needs = [self.begin(new, time, channels, channel) for channel in turn]
            for at in self.pick.permutation(len(turn)).tolist():
                answers[turn[at]] = self.close(new, time, channels, turn[at], needs[at])
        delta, _ = new.seal(time.epoch, 0, len(channels))
        self.bring_slots(new, SLOTS)
        self.old = new
        return [answers[channel] for channel in range(len(channels))], delta

    def begin(
        self, new: HostMachine, time: EpochTime, channels: list[Channel], channel: int
    ) -> Need | None:
        head = ChannelHeader(time.epoch, 0, "step", channel, channel, len(channels), time)
        while (need := new.needs(head, *channels[channel])) is not None:
            if not isinstance(need, NeedDue):
                pieces = int(self.pick.integers(1, 5))
                for _ in range(pieces):
                    self.begun += new.apply_here(head, *channels[channel], into(pieces))
                return need
            self.bring(new, need)
        return None

    def close(
        self,
        new: HostMachine,
        time: EpochTime,
        channels: list[Channel],
        channel: int,
        need: Need | None,
    ) -> Answer:
        """Close a channel, maybe in another attempt, and maybe before its first attempt has its state."""
        count, other = len(channels), int(self.pick.integers(0, 2))
        head = ChannelHeader(time.epoch, 0, "step", channel, channel + count * other, count, time)
        if need is not None and self.pick.random() < 0.5:
            self.bring(new, need)
        while (lacks := new.needs(head, *channels[channel])) is not None:
            new.apply_here(head, *channels[channel])
            self.bring(new, lacks)
        # Only portable steps: the others do not close channels in pieces.
        if new.operator.portable and new is not self.old and self.pick.random() < 0.5:
            return in_pieces(new, head, channels[channel], bool(self.pick.integers(0, 2)))
        return new.close_channel(head, *channels[channel])


def same(plan: StepPlan, epochs: list[Epoch], parts: int, seed: int) -> int:
    """Check that output and changes are those of a host with all state; return how many channels began.

    Channels are closed one after the other, or in any order. Then no two have a key in common, because the
    order of a key's rows matters.
    """
    pick = np.random.default_rng(seed)
    mixed = bool(pick.integers(0, 2))
    moving, at_rest = Moving(plan, parts, pick), Moving(plan, 1, np.random.default_rng(seed))
    at_rest.move = lambda version: at_rest.old  # type: ignore[method-assign]
    for number, epoch in enumerate(epochs):
        time = EpochTime(number, epoch.now_ms, epoch.watermark_ms, epoch.final)
        channels = [sent(plan, time, rows, 3) for rows in epoch.channels] or [(ROWS, [])]
        if mixed:
            operator = at_rest.old.operator
            channels = [only(operator, c, n, len(channels)) for n, c in enumerate(channels)]
        (got, delta), (wanted, changes) = (
            m.epoch(time, channels, mixed) for m in (moving, at_rest)
        )
        assert _bag(got) == _bag(wanted), number
        assert Counter(d for a in got for d in a.dead) == Counter(d for a in wanted for d in a.dead)
        assert Counter(map(repr, delta.to_pylist())) == Counter(map(repr, changes.to_pylist()))
    return moving.begun


def only(operator: Operator, channel: Channel, number: int, count: int) -> Channel:
    """Return the records of a channel whose keys belong to it alone."""
    kind, batches = channel
    of = [np.flatnonzero(keys.hashes % count == number) for keys in operator.keys(kind, batches)]
    return kind, [taken(batch, rows) for batch, rows in zip(batches, of, strict=True)]


def _bag(answers: list[Answer]) -> Counter[tuple[Any, ...]]:
    return bag([row for a in answers for batch in a.batches for row in batch.to_pylist()])


SEEDS, PARTS = st.integers(0, 1 << 20), st.sampled_from([1, 3])


@pytest.mark.parametrize("name", SINGLE)
@given(epochs_of(), PARTS, SEEDS)
@settings(max_examples=6)
def test_same_as_with_all_state(name: str, epochs: list[Epoch], parts: int, seed: int) -> None:
    same(SINGLE[name], epochs, parts, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
@given(epochs_of(), PARTS, SEEDS)
@settings(max_examples=80)
def test_same_as_with_all_state_often(
    name: str, epochs: list[Epoch], parts: int, seed: int
) -> None:
    same(SINGLE[name], epochs, parts, seed)


@pytest.mark.parametrize("name", JOINS)
@given(timed_epochs(SIDES, st.integers(0, 8)), PARTS, SEEDS)
@settings(max_examples=6)
def test_joins_as_with_all_state(name: str, epochs: list[Epoch], parts: int, seed: int) -> None:
    stream = OneStream(JOINS[name])
    same(stream, in_one_stream(stream, epochs), parts, seed)


@pytest.mark.parametrize("name", SINGLE)
def test_channels_begin_in_every_step(name: str) -> None:
    """Most channels have rows of keys that are here, and of others."""
    for seed in range(3):
        pick = np.random.default_rng(seed)
        epochs = [
            Epoch([random_rows(pick, n * 8, 12) for _ in range(2)], n * 8 - 6, n * 8, n == 2)
            for n in range(3)
        ]
        assert same(SINGLE[name], epochs, 1, seed) > 0
