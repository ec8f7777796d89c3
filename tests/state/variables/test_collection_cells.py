"""Deltas of maps and lists contain the changes of user code that were not undone, and no others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.state.table.patches import fold, unresolved
from penstock.state.variables import collection_cells
from penstock.state.variables.handle import StateHandle
from tests.state.variables.test_handle import CODEC, Desk


def merged(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Merge two files into one."""
    places = {key: at for at, key in enumerate(older.column("__key").to_pylist())}
    keys = newer.column("__key").to_pylist()
    new = np.array([at for at, key in enumerate(keys) if key not in places], np.int64)
    both = np.array([at for at, key in enumerate(keys) if key in places], np.int64)
    of_both = pa.array([places[keys[at]] for at in both], pa.int64())
    kept = np.setdiff1d(np.arange(older.num_rows), of_both.to_numpy())
    parts = [older.take(pa.array(kept)), newer.take(pa.array(new))]
    return pa.concat_tables([*parts, fold(older.take(of_both), newer.take(pa.array(both)))])


USERS = ("ann", "bob", "cid")
TTL = 100
KEYS = 30
Steps = list[tuple[str, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "put", "put", "remove", "remove", "remove", "append", "append", "append",
             "again", "again", "value", "value", "clear_map", "set_list", "clear_list"]
        ),
        st.integers(0, KEYS),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


def declared(handle: StateHandle) -> list[Any]:
    return [
        handle.get_map_state("m", "k long", "n long"),
        handle.get_map_state("mt", "k long", "n long", TTL),
        handle.get_list_state("l", "n long"),
        handle.get_list_state("lt", "n long", TTL),
        handle.get_value_state("v", "n long"),
    ]


def nothing() -> list[Any]:
    return [{}, {}, [], [], None]


class PatchMachine(RuleBasedStateMachine):
    """A table under all operations of an operator, its deltas, and a dict with the same contents."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(declared)
        self.now = self.number = 0
        self.files: list[pa.Table] = []
        """Deltas, the oldest first; some are merged."""
        self.model: dict[str, list[Any]] = {user: nothing() for user in USERS}
        self.cuts = [copy.deepcopy(self.model)]
        """As of the newest durable cut, and of all cuts since."""
        self.pending: list[pa.Table] = []
        """Deltas of cuts that are not durable."""
        self.savepoints: list[dict[str, list[Any]]] = []
        self.small = mock.patch.object(collection_cells, "SMALL", 0)
        self.small.start()

    def teardown(self) -> None:
        self.check()
        self.seal()
        self.restart()
        self.check()
        self.small.stop()

    # -- operations of the operator

    @rule(
        calls=st.lists(
            st.tuples(st.sampled_from(USERS), STEPS, st.booleans()), min_size=1, max_size=4
        ),
        fails=st.sampled_from([False, False, False, True]),
    )
    def work(self, calls: list[tuple[str, Steps, bool]], fails: bool) -> None:
        users = list(dict.fromkeys(user for user, _, _ in calls))
        keys = self.known(users)
        cells, before = self.desk.handle.cells, copy.deepcopy(self.model)
        try:
            with cells.work(keys, self.desk.table.find(keys)):
                for user, steps, undone in calls:
                    mark, was = cells.begin(users.index(user)), copy.deepcopy(self.model[user])
                    self.change(user, steps)
                    if undone:
                        cells.undo(mark)
                        self.model[user] = was
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            self.model = before

    @initialize()
    def begin(self) -> None:
        for user in USERS:
            self.fill(user)
        self.seal()

    @rule(user=st.sampled_from(USERS))
    def fill(self, user: str) -> None:
        """Add enough elements for later changes to be small in comparison."""
        steps = [("put", k) for k in range(0, KEYS, 2)] + [("append", KEYS)] * 8
        self.work([(user, steps, False)], False)

    @rule()
    def savepoint(self) -> None:
        assert self.desk.table.savepoint() == len(self.savepoints)
        self.savepoints.append(copy.deepcopy(self.model))

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        mark = data.draw(st.integers(0, len(self.savepoints) - 1))
        self.desk.table.undo(mark)
        del self.savepoints[mark + 1 :]
        self.model = copy.deepcopy(self.savepoints[mark])

    @rule()
    def rollback(self) -> None:
        self.desk.table.rollback()
        self.savepoints.clear()
        self.model = copy.deepcopy(self.cuts[0])
        self.pending, self.cuts = [], [copy.deepcopy(self.model)]

    @rule()
    def step(self) -> None:
        self.desk.table.step()
        self.savepoints.clear()

    @rule()
    def cut(self) -> None:
        self.take_delta()
        self.desk.table.cut()

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        durable = data.draw(st.integers(0, len(self.pending)))
        self.desk.table.settle(durable)
        self.files += self.pending[:durable]
        del self.pending[:durable], self.cuts[:durable]

    @rule()
    def seal(self) -> None:
        self.take_delta()
        self.desk.table.seal()
        self.files += self.pending
        self.pending, self.cuts = [], self.cuts[-1:]

    def take_delta(self) -> None:
        delta = self.desk.table.delta()
        assert delta.equals(self.desk.table.delta())
        self.pending.append(delta)
        self.savepoints.clear()
        self.cuts.append(copy.deepcopy(self.model))
        self.check_files()

    @rule(ms=st.integers(1, 60))
    def purge(self, ms: int) -> None:
        self.now += ms
        self.desk.purge(self.now)

    # -- changes of tables and files

    @precondition(lambda self: self.desk.table.between_rounds)
    @rule(share=st.floats(0, 1))
    def evict(self, share: float) -> None:
        self.desk.table.evict(int(share * self.desk.table.nbytes))
        self.savepoints.clear()

    @precondition(lambda self: self.desk.table.sealed)
    @rule()
    def restart(self) -> None:
        self.desk = Desk(declared)
        if self.files:
            self.desk.table.load(self.stored())
        self.savepoints.clear()

    @rule()
    def weigh(self) -> None:
        """Measure memory, which also reads cells in the undo log and must not change them."""
        assert self.desk.table.nbytes

    @precondition(lambda self: len(self.files) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.files) - 2))
        self.files[at : at + 2] = [merged(self.files[at], self.files[at + 1])]
        self.check_files()

    @rule()
    def check(self) -> None:
        """Check that calls see the expected values."""
        keys = self.known(USERS)
        cells = self.desk.handle.cells
        with cells.work(keys, self.desk.table.find(keys)):
            for at, user in enumerate(USERS):
                cells.begin(at)
                assert self.seen() == self.living(self.model[user])

    # -- how it works

    def check_files(self) -> None:
        """Check that files have the state at the last cut."""
        table = self.stored(self.pending)
        assert not unresolved(table).any()
        other = Desk(declared)
        other.table.load(table)
        cells = other.handle.cells
        cells.now_ms = self.now
        keys = CODEC.encode(pa.record_batch({"user": USERS}))
        with cells.work(keys, other.table.find(keys)):
            for at, user in enumerate(USERS):
                cells.begin(at)
                assert self.seen(other) == self.living(self.cuts[-1][user])

    def stored(self, pending: Sequence[pa.Table] = ()) -> pa.Table:
        files = [*self.files, *pending]
        table = files[0]
        for newer in files[1:]:
            table = merged(table, newer)
        return table.filter(table.column("__present"))

    def known(self, users: Iterable[str]) -> Any:
        """The keys of these users. Evicted entries are installed again."""
        self.desk.handle.cells.now_ms = self.now
        keys = CODEC.encode(pa.record_batch({"user": list(users)}))
        missing = ~self.desk.table.known(keys)
        if missing.any() and self.files:
            wanted = keys.take(np.flatnonzero(missing))
            table = self.stored()
            mine = np.isin(table.column("__hash").to_numpy(), wanted.hashes)
            self.desk.table.install(wanted, table.filter(pa.array(mine)))
        return keys

    def living(self, state: list[Any]) -> list[Any]:
        m, mt, items, lt, v = state
        pairs = [(k, n) for k, (n, end) in mt.items() if end > self.now]
        return [list(m.items()), pairs, items, [n for n, end in lt if end > self.now], v]

    def seen(self, desk: Desk | None = None) -> list[Any]:
        m, mt, items, lt, v = (desk or self.desk).states[0]
        pairs = [[(key.k, row.n) for key, row in state.iterator()] for state in (m, mt)]
        lists = [[row.n for row in state.get()] for state in (items, lt)]
        return [*pairs, *lists, v.get() and v.get().n]

    def change(self, user: str, steps: Steps) -> None:
        m, mt, items, lt, v = self.desk.states[0]
        mine = self.model[user]
        # a call does not see expired elements
        mine[1] = {k: pair for k, pair in mine[1].items() if pair[1] > self.now}
        mine[3] = [item for item in mine[3] if item[1] > self.now]
        end = self.now + TTL
        for step, n in steps:
            self.number += 1
            if step == "again":
                self.change(user, [("remove", n), ("put", n)])
            elif step == "put":
                for state in (m, mt):
                    state.update_value((n,), (self.number,))
                mine[0][n], mine[1][n] = self.number, (self.number, end)
            elif step == "remove":
                for state in (m, mt):
                    state.remove_key((n,))
                for pairs in mine[:2]:
                    pairs.pop(n, None)
            elif step == "clear_map":
                m.clear()
                mt.clear()
                mine[:2] = {}, {}
            elif step == "append":
                for state in (items, lt):
                    state.append_list([(self.number,)] * (n // 8))
                mine[2] = mine[2] + [self.number] * (n // 8)
                mine[3] = mine[3] + [(self.number, end)] * (n // 8)
            elif step == "set_list":
                for state in (items, lt):
                    state.put([(self.number,)] * n)
                mine[2], mine[3] = [self.number] * n, [(self.number, end)] * n
            elif step == "clear_list":
                items.clear()
                lt.clear()
                mine[2:4] = [], []
            else:
                v.update((self.number,))
                mine[4] = self.number


TestPatchMachine = PatchMachine.TestCase
TestPatchMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
