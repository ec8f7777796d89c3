"""The output of every kind of flow in live mode is that of a batch computation of the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trials.live_subjects import SUBJECTS
from tests.trials.live_trial import subject_trial


@pytest.mark.parametrize("couriers", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SUBJECTS)
def test_it_gives_what_a_batch_would(tmp_path: Path, name: str, couriers: int) -> None:
    with subject_trial(name, tmp_path, couriers=couriers) as trial:
        for _ in range(3):
            trial.give()
            trial.cluster.pass_epochs(1)
        trial.check()
        assert all(one.runs == 1 for one in trial.cluster.progress)
