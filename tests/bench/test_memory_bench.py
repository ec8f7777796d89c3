"""The memory part of `bench pipeline`: what counts as growth over many epochs."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock_bench.pipeline import many_epochs


@pytest.mark.parametrize("epochs", [20, 33, 400])
def test_memory_is_sampled_at_equal_distances_and_no_epoch_is_left_out(epochs: int) -> None:
    ran: list[int] = []
    samples = many_epochs.sampled(lambda: ran.append(1), lambda: float(len(ran)), epochs)
    assert len(ran) == samples[-1] == epochs
    distances = [b - a for a, b in zip([0.0, *samples], samples, strict=False)]
    assert len(samples) == 20
    assert max(distances) - min(distances) <= 1


def test_a_leak_is_growth_and_what_fills_caches_at_first_is_none() -> None:
    leak = [100.0 + 0.5 * part for part in range(20)]
    filled = [40.0, 90.0, *[120.0] * 18]
    assert many_epochs.growth_mb(leak) == 7.0
    assert many_epochs.growth_mb(filled) == 0.0


def test_a_sample_with_something_large_in_it_is_no_growth() -> None:
    assert many_epochs.growth_mb([*[120.0] * 19, 300.0]) == 0.0
    assert many_epochs.growth_mb([120.0, 120.0, 120.0, 20.0, *[120.0] * 16]) == 0.0


def test_the_real_processes_run_without_spark() -> None:
    shown: list[str] = []
    found = many_epochs.measure(20, shown.append)
    assert found["epochs"] == 20
    assert len(found["mb"]) == 20
    assert min(found["mb"]) > 10
    assert shown[0].startswith("20 epochs without Spark: ")


def test_a_run_that_fails_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PenstockError, match="ValueError: invalid literal"):
        many_epochs.measure("none", print)  # type: ignore[arg-type]
