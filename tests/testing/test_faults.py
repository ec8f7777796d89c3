"""Fault points: armed faults happen where and when they should, and nowhere else."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import subprocess
import sys
import threading
import timeit
from pathlib import Path

import pytest

import penstock
from penstock import faults
from penstock.errors import SettingError
from penstock.faults import HELP_POINTS, LIVE_POINTS, point
from penstock.testing import FAULT_POINTS, TRIAL_POINTS, Fault, InjectedFault, armed

ROOT = Path(penstock.__file__).parent
POINTS = FAULT_POINTS | HELP_POINTS | LIVE_POINTS | TRIAL_POINTS


def calls() -> list[tuple[Path, ast.Call]]:
    """All calls of `point` in the package."""
    return [
        (file.relative_to(ROOT), node)
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in ("point", "faults.point")
            or ast.unparse(node.func).endswith(".pass_point")
        )
        and isinstance(node.args[0], ast.Constant)
    ]


def test_every_point_is_somewhere_in_the_code_and_every_call_is_documented() -> None:
    names = set()
    for file, call in calls():
        name = ast.literal_eval(call.args[0])
        assert name in POINTS, f"{file}:{call.lineno} passes {name!r}"
        names.add(name)
        facts = {keyword.arg for keyword in call.keywords}
        # facts that a conversation adds, or that come from a dict, are not visible in the call
        if None not in facts and not ast.unparse(call.func).endswith("pass_point"):
            known = {*POINTS[name].where, *POINTS[name].hands}
            assert facts == known, f"{file}:{call.lineno}"
    assert names == set(POINTS)


def test_a_point_is_for_failures_or_for_trials() -> None:
    assert not set(FAULT_POINTS) & set(TRIAL_POINTS)


def test_nothing_happens_when_nothing_is_armed() -> None:
    point("driver.sealed", epoch=1, run=0)
    each_s = min(timeit.repeat(lambda: point("store.write", file="x"), number=10_000)) / 10_000
    assert each_s < 5e-6


def test_a_fault_picks_its_passing_by_facts_and_number() -> None:
    fault = Fault("host.seal", where={"host": "sum/1", "run": 0}, hits=(2, 4))
    raised = []
    with armed(fault) as here:
        for epoch in range(6):
            for host in ("sum/0", "sum/1"):
                try:
                    point("host.seal", host=host, step="sum", epoch=epoch, run=0)
                except InjectedFault as failed:
                    raised.append((failed.point, failed.where["host"], failed.where["epoch"]))
        point("host.seal", host="sum/1", step="sum", epoch=3, run=1)
    assert raised == [("host.seal", "sum/1", 1), ("host.seal", "sum/1", 3)]
    assert here.passed["host.seal"] == 13
    assert [passed.where["epoch"] for passed in here.fired] == [1, 3]


def test_a_fault_without_hits_happens_every_time() -> None:
    with armed(Fault("store.write", do=OSError, hits=())):
        for _ in range(3):
            with pytest.raises(OSError, match=r"store\.write"):
                point("store.write", file="x")


def test_a_fault_may_be_a_function() -> None:
    seen = []
    with armed(Fault("store.write", do=lambda facts: seen.append(facts["file"]), hits=())):
        point("store.write", file="x")
    point("store.write", file="y")
    assert seen == ["x"]


def test_an_action_gets_what_a_point_hands_over_and_gives_seconds() -> None:
    work = {"step": "map-1", "records": 3, "took_s": 0.5}
    half = Fault("courier.work", do=lambda facts: facts["records"] / 2, hits=range(2, 9))
    assert point("courier.work", **work) == 0.0
    with armed(half) as here, armed(half):
        assert [point("courier.work", **work) for _ in range(2)] == [0.0, 3.0]
    assert str(here.fired[0]) == "courier.work (step=map-1)"


def test_code_that_handles_errors_does_not_handle_a_fault() -> None:
    def careful() -> None:
        try:
            point("driver.written", epoch=0, run=0)
        except Exception:
            pytest.fail("an injected fault is not an Exception")

    with armed(Fault("driver.written")), pytest.raises(InjectedFault):
        careful()


def test_a_hanging_fault_lets_go_when_it_is_disarmed() -> None:
    ended = threading.Event()

    def hang() -> None:
        with pytest.raises(InjectedFault):
            point("store.write", file="x")
        ended.set()

    thread = threading.Thread(target=hang)
    with armed(Fault("store.write", do="hang")) as here:
        thread.start()
        while not here.fired:
            pass
        assert not ended.wait(0.05)
    assert ended.wait(5)
    thread.join()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Fault("host.aply"), "unknown fault point 'host.aply'"),
        (lambda: Fault("driver.sealed", where={"host": "a"}), "has no host for"),
        (lambda: Fault("driver.sealed", do="explode"), "cannot do 'explode'"),  # type: ignore[arg-type]
    ],
)
def test_a_typo_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(SettingError, match=message):
        wrong()


def test_a_typo_in_a_call_is_refused_as_soon_as_anything_is_armed() -> None:
    with armed(), pytest.raises(SettingError, match=r"use host\.applied"):
        point("host.aplied")


def test_shipped_faults_keep_their_counts_until_others_come() -> None:
    def shipped() -> tuple[Fault, ...]:
        fault = Fault("courier.sent", where={"epoch": 1}, hits=(2,))
        return pickle.loads(pickle.dumps((fault,)))

    where = {"step": "sum", "epoch": 1, "run": 0, "partition": 0, "attempt": 0}
    try:
        faults.arm(shipped())
        point("courier.sent", **where)
        with armed(Fault("driver.clean")):
            faults.arm(shipped())
        with pytest.raises(InjectedFault):
            point("courier.sent", **where)
        faults.arm(())
        point("courier.sent", **where)
        faults.arm(shipped())
        point("courier.sent", **where)
    finally:
        faults.arm(())


def test_an_injected_fault_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(InjectedFault("host.seal", {"epoch": 1})))
    assert (again.point, again.where) == ("host.seal", {"epoch": 1})


def test_a_killing_fault_ends_the_process() -> None:
    code = (
        "from penstock import faults\n"
        "faults.arm((faults.Fault('store.write', do='kill'),))\n"
        "faults.point('store.write', file='x')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False)
    assert ended.returncode == -signal.SIGKILL
