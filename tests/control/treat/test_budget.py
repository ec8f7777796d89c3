from __future__ import annotations

import math
import random

import pytest

from penstock.control.treat.budget import Budget
from penstock.errors import SettingError
from penstock.model import StepId

SPLIT, COUNT, JOIN = StepId("split"), StepId("count"), StepId("join")


@pytest.mark.parametrize("rates", [(1.0, 1.0), (0.93, 0.93), (0.0, 0.0), (0.99, 0.9911)])
def test_equal_success_moves_nothing(rates: tuple[float, float]) -> None:
    budget = Budget([SPLIT, COUNT])
    for _ in range(5):
        assert budget.update(dict(zip(["split", "count"], rates, strict=True))) == {
            SPLIT: 0.5,
            COUNT: 0.5,
        }


def test_no_share_moves_while_a_success_rate_is_unknown() -> None:
    budget = Budget([SPLIT, COUNT])
    assert budget.update({"split": 0.2}) == budget.update({"split": 0.2, "count": math.nan})
    assert budget.shares == {SPLIT: 0.5, COUNT: 0.5}


def test_the_step_that_does_worse_gets_more_and_only_a_little() -> None:
    budget = Budget([SPLIT, COUNT, JOIN])
    shares = budget.update({"split": 1.0, "count": 0.0, "join": 0.5})
    assert shares[COUNT] > shares[JOIN] > shares[SPLIT]
    assert all(abs(share - 1 / 3) < 0.05 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)


def test_no_share_falls_below_the_floor() -> None:
    budget = Budget([SPLIT, COUNT], floor=0.05)
    for _ in range(200):
        shares = budget.update({"split": 1.0, "count": 0.3})
    assert shares[SPLIT] == pytest.approx(0.05)
    assert shares[COUNT] == pytest.approx(0.95)


def test_many_steps_have_a_lower_floor() -> None:
    steps = [StepId(f"step{n}") for n in range(40)]
    budget = Budget(steps, floor=0.05)
    for _ in range(300):
        shares = budget.update({step: float(step != "step0") for step in steps})
    assert min(shares.values()) == pytest.approx(0.5 / 40)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("steepness", [3.0, 10.0, 40.0])
@pytest.mark.parametrize("needs", [(0.3, 0.1), (0.1, 0.3, 0.2), (0.45, 0.05, 0.05, 0.05)])
def test_success_rates_level_out(needs: tuple[float, ...], steepness: float) -> None:
    """Each step needs some part of the bound. Its success rises with its share, gently or steeply."""
    steps = [StepId(f"step{n}") for n in range(len(needs))]
    need = dict(zip(steps, needs, strict=True))
    budget = Budget(steps)

    def success(shares: dict[StepId, float]) -> dict[str, float]:
        return {s: 1 / (1 + math.exp(-steepness * (shares[s] - need[s]))) for s in steps}

    first = success(budget.shares)
    for _ in range(400):
        shares = budget.update(success(budget.shares))
    last = success(shares)
    assert max(last.values()) - min(last.values()) < 0.01
    assert min(last.values()) >= min(first.values())


def test_shares_stay_put_once_success_is_level_in_spite_of_noise() -> None:
    random.seed(5)
    budget = Budget([SPLIT, COUNT])
    history = []
    for _ in range(300):
        right = {s: 0.97 + 0.1 * (budget.shares[s] - n) for s, n in ((SPLIT, 0.6), (COUNT, 0.4))}
        history.append(
            budget.update({step: rate + random.gauss(0, 0.005) for step, rate in right.items()})
        )
    assert all(abs(shares[SPLIT] - 0.6) < 0.05 for shares in history[150:])


@pytest.mark.parametrize(("steps", "floor"), [([], 0.05), ([SPLIT, SPLIT], 0.05), ([SPLIT], 0.0)])
def test_invalid_steps_or_floors_are_refused(steps: list[StepId], floor: float) -> None:
    with pytest.raises(SettingError):
        Budget(steps, floor)
