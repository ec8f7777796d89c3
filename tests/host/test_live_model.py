"""Reroutes and checkpoints on live hosts, in all orders in which frames and answers can arrive.

Every row is applied once, by the owner at its point of the stream, and each courier's rows in order. A
checkpoint has exactly the rows before it. Nothing waits forever. From any state, hosts can roll back to the
newest manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.host import rounds
from penstock.host.held_rows import HeldRows
from penstock.host.holdings import Holdings
from penstock.host.residence import Residence
from penstock.host.rounds import Rounds
from penstock.wire.live import Chunk, Message
from tests.host.live_models import Cut, Move, Row, explore, world

ONE, OTHER, CUT = Row(0), Row(1), Cut()
MOVE, WHOLE, CROSS = Move(0, 0, 1), Move(0, 0, 1, whole=True), Move(1, 1, 0)
BACK, ON = Move(0, 1, 0, after=1), Move(0, 1, 2, after=1)

CASES: dict[str, dict[str, Any]] = {
    "a move": {"scripts": [[ONE, MOVE, ONE, CUT], [ONE, MOVE, ONE, CUT]]},
    "no rows after the move": {"scripts": [[ONE, MOVE, CUT], [ONE, MOVE, CUT]]},
    "rows behind the checkpoint": {
        "scripts": [[ONE, MOVE, ONE, CUT, ONE], [OTHER, MOVE, CUT, ONE]]
    },
    "two checkpoints": {"scripts": [[ONE, CUT, MOVE, ONE, CUT], [CUT, MOVE, CUT]]},
    "state in the store": {
        "scripts": [[ONE, MOVE, ONE, CUT], [MOVE, ONE, CUT]],
        "stored": True,
    },
    "a slot is fetched as a whole": {"scripts": [[ONE, WHOLE, ONE, CUT], [WHOLE, ONE, CUT]]},
    "a slot is fetched as a whole from a host that lacks some of it": {
        "scripts": [[ONE, WHOLE, ONE, CUT], [WHOLE, ONE, CUT]],
        "stored": True,
    },
    "slots cross": {"scripts": [[ONE, MOVE, CROSS, OTHER, CUT], [MOVE, CROSS, ONE, CUT]]},
    "a move there and back": {
        "scripts": [[ONE, MOVE, ONE, CUT, BACK, ONE, CUT], [MOVE, CUT, BACK, CUT]]
    },
    "a move back before the state has arrived": {
        "scripts": [[MOVE, CUT, ONE, BACK, ONE, CUT], [MOVE, CUT, BACK, CUT]],
        "stored": True,
    },
    "a second move to a third host": {
        "scripts": [[MOVE, ONE, CUT, ON, ONE, CUT]],
        "hosts": 3,
    },
    "a second move to a third host, from the store": {
        "scripts": [[MOVE, CUT, ON, ONE, CUT]],
        "hosts": 3,
        "stored": True,
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_order_of_deliveries(case: dict[str, Any]) -> None:
    assert explore(lambda: world(**case)) > 30


SLOW: dict[str, dict[str, Any]] = {
    "a move": {"scripts": [[OTHER, ONE, OTHER, MOVE, ONE], [ONE, MOVE]], "owners": (0, 0)},
    "a move to a busy host": {
        "scripts": [[OTHER, OTHER, OTHER, MOVE, ONE], [ONE, MOVE, ONE]],
    },
    "state in the store": {
        "scripts": [[OTHER, ONE, OTHER, MOVE, ONE]],
        "owners": (0, 0),
        "stored": True,
    },
    "a checkpoint before it": {
        "scripts": [[ONE, CUT, OTHER, ONE, MOVE, CUT]],
        "owners": (0, 0),
    },
    "a checkpoint that has not come in all streams": {
        "scripts": [[CUT, ONE, OTHER, MOVE], [ONE, CUT, MOVE]],
        "owners": (0, 0),
    },
    "slots cross": {"scripts": [[ONE, OTHER, ONE, MOVE, CROSS, OTHER]]},
}
"""Runs in which reroutes overtake queued rows."""


@pytest.mark.parametrize("case", SLOW.values(), ids=SLOW)
def test_every_order_with_queues(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reroutes overtake rows of other slots."""
    monkeypatch.setattr(rounds, "MOST_ROWS", 1)
    overtaken, pull = [], rounds._Courier.pull
    monkeypatch.setattr(rounds._Courier, "pull", lambda *of: overtaken.append(1) or pull(*of))
    assert explore(lambda: world(**case, slow=True)) > 30
    assert overtaken or case["scripts"][0].count(OTHER) == 3


# -- mutants, which the tests must find

Mutant = Callable[[pytest.MonkeyPatch], None]


def does_not_align(patch: pytest.MonkeyPatch) -> None:
    def frames(self: Rounds) -> Iterator[Any]:
        for number, courier in enumerate(self._couriers):
            while courier.frames:
                frame, batch, _ = courier.frames.popleft()
                yield number, frame, batch

    patch.setattr(Rounds, "_frames", frames)


def applies_what_has_no_state(patch: pytest.MonkeyPatch) -> None:
    def hold(self: HeldRows, courier: int, chunk: Chunk, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    patch.setattr(HeldRows, "hold", hold)


def gives_away_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rounds, "_active", property(lambda self: set()))


def cuts_through_held_rows(patch: pytest.MonkeyPatch) -> None:
    cuts = Rounds._cuts

    def careless(self: Rounds, outcome: Any) -> bool:
        held, self._held.chunks = self._held.chunks, []
        try:
            return cuts(self, outcome)
        finally:
            self._held.chunks = held

    patch.setattr(Rounds, "_cuts", careless)


def forgets_what_left(patch: pytest.MonkeyPatch) -> None:
    cut = Holdings.cut
    patch.setattr(Holdings, "cut", lambda self, epoch: cut(self, epoch)[-1:])


def keeps_slots_on_the_way_back(patch: pytest.MonkeyPatch) -> None:
    roll_back = Residence.roll_back

    def careless(self: Residence, version: int) -> Any:
        owned = self.owned.copy()
        gone = roll_back(self, version)
        self.owned[:] = owned
        return gone

    patch.setattr(Residence, "roll_back", careless)


MUTANTS: dict[Mutant, str] = {
    does_not_align: "rows behind the checkpoint",
    applies_what_has_no_state: "a move",
    gives_away_at_once: "a move",
    cuts_through_held_rows: "a move",
    forgets_what_left: "no rows after the move",
    keeps_slots_on_the_way_back: "two checkpoints",
}


def gives_before_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds._Courier, "pull", lambda self, of: iter(()))


def overtakes_checkpoints(patch: pytest.MonkeyPatch) -> None:
    def next_reroute(self: Any) -> Message | None:
        return next((message for message in self.ahead if message.reroute is not None), None)

    patch.setattr(rounds._Courier, "next_reroute", property(next_reroute))


OVERTAKING: dict[Mutant, str] = {
    gives_before_rows: "a move",
    overtakes_checkpoints: "a checkpoint before it",
}


@pytest.mark.parametrize("mutant", OVERTAKING, ids=lambda mutant: mutant.__name__)
def test_a_mutant_that_overtakes_too_much_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    monkeypatch.setattr(rounds, "MOST_ROWS", 1)
    with pytest.raises((AssertionError, KeyError)):
        explore(lambda: world(**SLOW[OVERTAKING[mutant]], slow=True))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        explore(lambda: world(**CASES[MUTANTS[mutant]]))
