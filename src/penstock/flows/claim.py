"""Opening a checkpoint for a flow: whether the flow can continue from it, under which names of steps."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa

from penstock import codec
from penstock.errors import CheckpointError, SettingError, StoreError
from penstock.flows.step_names import matched
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.state.store.manifest import Renaming, check_flow
from penstock.state.store.renaming import rename_steps
from penstock.state.store.store import FORMAT, READABLE, Store
from penstock.state.table.table import HASH

Mode = Literal["micro_batch", "live"]
Facts = dict[str, Any]
"""Contents of `flow.json`, or of one step in it."""


def claim(
    store: Store,
    plan: FlowPlan,
    mode: Mode,
    switched: Callable[[Facts], Facts],
    bounded: bool = False,
) -> str:
    """Take the checkpoint for this flow, or raise if the flow cannot continue from it. Returns the flow's id.

    If the steps had other names before, the checkpoint gets the new ones. If the flow was last run in the
    other mode, `switched` is called with the facts of `flow.json` and returns those that change.
    """
    new: Facts = {
        "format": FORMAT,
        "mode": mode,
        "steps": [step_facts(step) for step in plan.keyed],
    }
    store.files.must_answer()
    try:
        known = store.read_flow()
        if known is not None:
            _check(store, known, new, bounded)
        store.claim(_now_ms())
        known = store.read_flow()  # another start may have written it meanwhile
        if known is None:
            known = new | {"id": secrets.token_hex(8)}
            store.write_flow(known)
        else:
            _check(store, known, new, bounded)
            known = _with_new_names(store, known, new["steps"])
        if known.get("mode", "micro_batch") != mode:
            known = known | switched(known) | {"mode": mode}
            store.write_flow(known)
    except (OSError, StoreError) as refused:
        raise SettingError(
            f"cannot use the checkpoint folder {store.uri!r}: {refused}",
            hint="choose a folder that this user may write to, and check the free space",
        ) from refused
    return str(known["id"])


def _with_new_names(store: Store, known: Facts, steps: list[Facts]) -> Facts:
    """The facts of `flow.json` after steps that have other names than before were renamed in the store."""
    names = matched(store.uri, known["steps"], steps)
    renamings = codec.from_plain(known.get("renamings", []), list[Renaming])
    if any(old != new for old, new in names.items()):
        assert store.owner is not None
        if store.owner.generation == 0:
            store.claim(
                _now_ms()
            )  # files without a generation count as those of 0, and must be older
        renamings.append(Renaming(store.owner.generation, names))
        known = known | {"steps": steps, "renamings": codec.to_plain(renamings)}
        store.write_flow(known)
    if renamings:
        rename_steps(store, renamings)
        known = {name: fact for name, fact in known.items() if name != "renamings"}
        store.write_flow(known)
    return known


def _check(store: Store, known: Facts, new: Facts, bounded: bool) -> None:
    """Raise if the checkpoint belongs to another flow, or the flow cannot continue from it."""
    if bounded and store.epochs():
        raise CheckpointError(
            f"{store.uri} already holds the state of a run, and a static DataFrame always starts afresh",
            hint="choose a new folder, or leave checkpoint out",
        )
    if known.get("format") not in READABLE:
        raise CheckpointError(
            f"{store.uri} has state format {known.get('format')}, this Penstock writes {FORMAT}",
            hint="open it with the release that wrote it, or start from a new checkpoint folder",
        )
    check_flow(known, f"flow.json of {store.uri}")
    if known.get("closed"):
        raise CheckpointError(
            f"{store.uri} belongs to a flow whose input has ended: all its windows are closed",
            hint="start it from a new checkpoint folder",
        )
    _compare(store.uri, codec.to_plain(known["steps"]), codec.to_plain(new["steps"]))


def _compare(uri: str, before: list[Facts], now: list[Facts]) -> None:
    """Raise if the steps of the checkpoint and of the flow do not match, or differ in a fact."""
    names, steps = matched(uri, before, now), {step["id"]: step for step in now}
    words = {"kind": "kind", "slots": "slot count", "keys": "key columns", "state": "state schema"}
    for old in before:
        new = steps[names[old["id"]]]
        for fact, word in words.items():
            if fact in old and old[fact] != new[fact]:
                raise CheckpointError(
                    f"step {new['id']}: the {word} of the checkpoint is {old[fact]}, the "
                    f"flow's is {new[fact]}",
                    hint="change it back, or start the changed flow from a new checkpoint folder",
                )


def step_facts(step: KeyedStep) -> Facts:
    schema: pa.Schema = step.operator().table.schema
    null = " or null" if step.codec.nulls else ""
    return {
        "id": step.id,
        "kind": step.kind,
        "slots": step.slots,
        "keys": [[field.name, f"{field.type}{null}"] for field in step.codec.schema],
        # The types once more, for tools that read the state without the flow.
        "key_schema": base64.b64encode(step.codec.schema.serialize()).decode(),
        "state": [[f.name, str(f.type)] for f in schema if f.name != HASH and "~" not in f.name],
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
