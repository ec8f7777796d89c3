"""`penstock bench start`: how soon a flow runs, compared with a plain Spark query.

Each start is a process of its own: import, session, `start()`, first epoch. The sides take turns. A keyed
sum on Penstock, with two hosts, is compared with Spark's own aggregation, and a flow without state with the
same rows written by Spark alone. All sides have the same source and sink (`noop`), and the same settings of
triggers. Only Penstock's sessions start Python workers ahead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock_bench.report import Goal, Report, Sample, Show
from penstock_bench.start.trial import ROWS, SIDES

GOALS = {
    "first_epoch_s": Goal(at_most=3.0),
    "first_epoch_vs_native": Goal(at_most=1.3),
    "import_s": Goal(at_most=0.2),
    "help_s": Goal(at_most=0.4),
}
_COMMANDS = {
    "python": ("-c", "pass"),
    "import": ("-c", "import penstock"),
    "help": ("-m", "penstock", "--help"),
}
"""Arguments of Python for each short command that is timed."""
_MOST_S = 300.0
"""Most seconds of one start."""


@dataclass(frozen=True)
class StartScale:
    """Size of the benchmark."""

    rounds: int = 4
    commands: int = 9
    """Runs of each short command."""


FULL = StartScale()
QUICK = StartScale(rounds=1, commands=3)


def run(show: Show, quick: bool = False) -> Report:
    """Run the whole benchmark: about five minutes, or one when quick."""
    scale = QUICK if quick else FULL
    results: dict[str, Any] = {name: _command(name, scale.commands, show) for name in _COMMANDS}
    phases: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    _start(SIDES[0])  # finds cold files, and does not count
    for number in range(1, scale.rounds + 1):
        # A later side finds warmer files, so the order alternates.
        for side in SIDES[:: 1 if number % 2 else -1]:
            took = _start(side)
            phases[side].append(took)
            show(f"round {number}: {side:<12} {line(took)}")
    results |= {side: summed(rounds) for side, rounds in phases.items()}
    settings = asdict(scale) | {"rows": ROWS, "hosts": 2, "partitions": 2, "sink": "noop"}
    return Report("start", settings, results, ratios(results))


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The metrics that have goals, and the same of a flow without state.

    >>> side = {"first_epoch_ms": {"median": 2000.0}, "until_first_epoch_ms": {"median": 4000.0}}
    >>> sides = dict.fromkeys(("penstock", "native", "plain", "native_plain"), side)
    >>> ratios(sides | dict.fromkeys(("import", "help"), {"median": 0.1}))["first_epoch_vs_native"]
    1.0
    """

    def ms(side: str, phase: str) -> float:
        return float(results[side][phase]["median"])

    whole = "until_first_epoch_ms"
    return {
        "first_epoch_s": ms("penstock", "first_epoch_ms") / 1000,
        "first_epoch_vs_native": ms("penstock", whole) / ms("native", whole),
        "plain_first_epoch_vs_native": ms("plain", whole) / ms("native_plain", whole),
        "import_s": float(results["import"]["median"]),
        "help_s": float(results["help"]["median"]),
    }


def summed(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Each phase over all rounds, and the time from the call of `start()` to the first epoch.

    >>> summed([{"start_ms": 1.0, "first_epoch_ms": 2.0}])["until_first_epoch_ms"]["median"]
    3.0
    """
    whole = [
        took | {"until_first_epoch_ms": took["start_ms"] + took["first_epoch_ms"]}
        for took in rounds
    ]
    return {phase: asdict(Sample.of([took[phase] for took in whole])) for phase in whole[0]}


def line(took: dict[str, float]) -> str:
    """The phases of a start in seconds.

    >>> line({"session_ms": 4210.0, "start_ms": 900.0})
    'session 4.21 s, start 0.90 s'
    """
    texts = ((name.removesuffix("_ms").replace("_", " "), ms) for name, ms in took.items())
    return ", ".join(f"{name} {ms / 1000:.2f} s" for name, ms in texts)


def _start(side: str) -> dict[str, float]:
    """The phases of one start in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-start-", ignore_cleanup_errors=True) as place:
        words = [sys.executable, "-m", "penstock_bench.start.trial", side, f"{place}/checkpoint"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_MOST_S, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise PenstockError(f"{side} did not start within {_MOST_S:.0f} s") from late
    if done.returncode:
        raise PenstockError(f"{side} did not start: {done.stderr.strip()[-2000:]}")
    phases: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return phases


def _command(name: str, times: int, show: Show) -> dict[str, Any]:
    """Seconds of a short command, as a process."""
    seconds = []
    for _ in range(times + 1):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, *_COMMANDS[name]],
            stdout=subprocess.DEVNULL,
            check=True,
            env=os.environ | {"TERM": "dumb"},
        )
        seconds.append(time.monotonic() - began)
    sample = Sample.of(seconds[1:])  # the first finds cold files
    show(f"{name}: {sample.median:.3f} s ({sample.low:.3f} to {sample.high:.3f})")
    return asdict(sample)
