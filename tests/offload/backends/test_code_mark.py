"""The mark of user code: equal in every process for the same code, different for other code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.offload.backends import code_mark as marking
from penstock.offload.backends.aws.backend import LambdaFunctions
from penstock.offload.backends.aws.handler import Handler
from penstock.offload.backends.code_mark import code_mark
from penstock.offload.backends.messages import flow_mark
from penstock.offload.backends.worker import BurstWorker
from penstock.wire.access import Access
from tests.offload.backends.flows import counting, doubled, slow_or_wrong
from tests.offload.backends.lambda_stand_in import InProcess, LambdaStandIn

CODE = """
import pyarrow.compute as pc
LIMIT = {limit}
NAMES = {{"a", "b", "c", "d"}}

def inner(v):
    return v + {added}

class Kept:
    def __init__(self, n):
        self.n = n
    def __call__(self, batch):
        return [self.n, inner({{"x": LIMIT}}), pc.add, {{"k", "l", "m"}}, NAMES, {text!r}]

def made(n, default={default}):
    def step(batch, other=default):
        return [inner(n), LIMIT, pc.add(n, 1), other, [v for v in batch if v in {{"a", "b", "c"}}]]
    return step
"""
PLAIN: dict[str, Any] = {"limit": 3, "added": 1, "text": "t", "default": 7}


def made(**changes: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "a_user"}
    exec(CODE.format(**PLAIN | changes), names)
    return names


def marks(names: dict[str, Any], n: int = 1) -> tuple[str, str, str]:
    step = names["made"](n)
    return code_mark(step), code_mark(names["Kept"](n)), code_mark(partial(step, n))


def test_the_same_code_has_the_same_mark() -> None:
    assert marks(made()) == marks(made())
    assert len(set(marks(made()))) == 3


@pytest.mark.parametrize("change", [{"limit": 4}, {"added": 2}])
def test_globals_that_a_function_reads_count(change: dict[str, Any]) -> None:
    assert not set(marks(made())) & set(marks(made(**change)))


def test_constants_defaults_and_what_is_closed_over_count() -> None:
    plain = marks(made())
    assert marks(made(text="u"))[1] != plain[1]
    assert marks(made(default=8))[0] != plain[0]
    assert not set(marks(made(), n=2)) & set(plain)


def test_values_of_any_kind_have_a_mark() -> None:
    @dataclass
    class Own:
        n: int
        more: Any

    circle: list[Any] = [1]
    circle.append(circle)
    values: list[Any] = [
        *(Own(n, {"a": np.arange(3), "b": {1, "x"}}) for n in (1, 2)), circle, open, Path("x"),
        np.arange(4), np.arange(5), sys, Own, lambda: circle, (lambda: circle).__code__,
    ]  # fmt: skip
    assert len({code_mark(value) for value in values}) == len(values)


def test_other_processes_have_the_same_mark() -> None:
    """Marks do not depend on the hash seed: a driver and `functions package` are two processes."""
    program = (
        "from tests.offload.backends.test_code_mark import *\n"
        "print(*marks(made()), flow_mark(counting(slow_or_wrong)), code_mark(Handler))"
    )
    marks = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(marks) == 1
    assert len(set(marks.pop().split())) == 5


def test_a_release_has_its_own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = flow_mark(counting(doubled))
    monkeypatch.setattr("penstock.offload.backends.messages.penstock_version", lambda: "99.0")
    assert flow_mark(counting(doubled)) != before
    assert marking.penstock_version() == "0.1.0"


def test_the_mark_goes_with_the_plan() -> None:
    flow = counting(doubled)
    mark = flow_mark(flow)
    copy = cloudpickle.loads(cloudpickle.dumps(flow))
    assert BurstWorker(copy).mark == mark


@pytest.mark.parametrize("deployed", [slow_or_wrong, doubled])
def test_a_lambda_function_of_other_code_is_refused(
    deployed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    start = lambda: InProcess(Handler(BurstWorker(counting(deployed))))  # noqa: E731
    with LambdaStandIn("flow", start) as stand_in:
        functions = LambdaFunctions("flow", "eu-central-1", stand_in.url)
        if deployed is doubled:
            functions.start(counting(doubled), "run", Access("token")).stop()
            return
        with pytest.raises(SettingError, match="functions package"):
            functions.start(counting(doubled), "run", Access("token"))
