"""`penstock state` on the checkpoint of a real run, compared with a reference implementation of the flow."""

from __future__ import annotations

import json
import random
from pathlib import Path

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.console.checkpoint.facts import StateEntry
from penstock.flows.claim import step_facts
from penstock.state.store.store import FORMAT, Store
from tests.trials.cluster import cluster
from tests.trials.ledger import LEDGER, LEDGER_STEP, LedgerTwin
from tests.trials.trial import some_rows


def test_every_epoch_of_a_ledger_that_moves_and_scales(tmp_path: Path) -> None:
    folder, pick, twin = f"{tmp_path}/penstock", random.Random(5), LedgerTwin()
    facts = {"format": FORMAT, "id": "f00d", "steps": [step_facts(LEDGER_STEP)]}
    Store(folder).write_flow(json.loads(json.dumps(facts)))
    checkpoint = Checkpoint(str(tmp_path))
    with cluster(LEDGER, folder) as on:
        for epoch in range(20):
            if epoch == 5:
                on.relocation.move("ledger", [0, 1], "ledger/1")
            if epoch == 10:
                on.relocation.scale("ledger", 3)
            parts = some_rows("ledger", pick, 30, 2)
            on.run(parts)
            twin.epoch([row for part in parts for row in part], on.now_ms)
            entries = {e.key["who"]: e for e in checkpoint.entries("ledger", limit=99).entries}
            assert entries.keys() <= twin.accounts.keys()
            for who, account in twin.accounts.items():
                assert held(entries.get(who)) == (account.pairs, account.pushed)
                history = checkpoint.history("ledger", [who])
                assert (history and history.entry) == entries.get(who)
            assert checkpoint.overview().steps[0].entries == len(entries)
    shown = checkpoint.slots("ledger")
    assert {group.why for group in shown.groups} == {"start", "move", "scale"}
    assert shown.layout is not None
    assert all(group.home == group.host for group in shown.groups)


def held(entry: StateEntry | None) -> tuple[dict[int, int], list[int]]:
    """The map and the list of an account."""
    if entry is None:
        return {}, []
    pairs = {key["n"]: value["v"] for key, value in entry.state["pairs.__map"] or ()}
    return pairs, [row["v"] for row in entry.state["pushed.__list"] or ()]
