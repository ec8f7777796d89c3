from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.control.treat.decision import Treatment
from penstock.errors import SettingError
from penstock.model import HostId
from penstock.observe.report import plots
from penstock.observe.report.plots import save_plots
from tests.observe.made_up import START_MS, recording

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module", autouse=True)
def _fonts_are_closed() -> Iterator[None]:
    """Close the fonts that matplotlib keeps open."""
    from matplotlib import font_manager

    yield
    font_manager._get_font.cache_clear()  # type: ignore[attr-defined]


def size(file: Path) -> tuple[int, int]:
    from PIL import Image

    with Image.open(file) as image:
        return image.size


def colours(file: Path) -> set[tuple[int, int, int]]:
    from PIL import Image

    with Image.open(file) as image:
        counted = image.convert("RGB").getcolors(1 << 20) or []
    return {colour for count, colour in counted if count > 2_000}  # type: ignore[misc]


def test_a_run_has_five_plots(tmp_path: Path) -> None:
    out = Treatment("scale_out", (7,), HostId("clicks/0"), HostId("clicks/2"), "")
    began = entries.began(At("clicks", START_MS + 20_000), [out], 900.0)
    files = save_plots(recording(60, burst=range(20, 40), entries=[began]), tmp_path / "png")
    names = ["latency.png", "input.png", "hosts.png", "slots.png", "epochs.png"]
    assert [file.name for file in files] == names
    assert all(size(file)[0] == 1200 for file in files)
    assert sum(file.stat().st_size for file in files) < 200_000


def test_the_plot_of_slots_has_a_colour_for_each_owner(tmp_path: Path) -> None:
    save_plots(recording(60, burst=range(20, 40)), tmp_path)
    white_and_owners = colours(tmp_path / "slots.png")
    assert {(255, 255, 255), (0, 114, 178), (230, 159, 0), (0, 158, 115)} <= white_and_owners


def test_a_missed_sla_is_shaded(tmp_path: Path) -> None:
    save_plots(recording(60, burst=range(20, 40)), tmp_path / "missed")
    save_plots(recording(60), tmp_path / "kept")
    shade = (249, 235, 224)
    assert shade in colours(tmp_path / "missed" / "latency.png")
    assert shade not in colours(tmp_path / "kept" / "latency.png")


def test_what_a_run_did_not_have_is_left_out(tmp_path: Path) -> None:
    recorded = recording(5)
    bare = [
        replace(m, steps=(), epochs=(), latency=None, rate=None, sla=None) for m in recorded.kept
    ]
    files = save_plots(replace(recorded, kept=bare), tmp_path)
    assert [file.name for file in files] == ["input.png"]


def test_a_run_without_any_moment_has_no_lines(tmp_path: Path) -> None:
    assert [file.name for file in save_plots(recording(0), tmp_path)] == ["input.png"]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(module: str, extra: str, purpose: str) -> None:
        raise SettingError(f"{purpose} needs {module}", hint=f"pip install 'penstock[{extra}]'")

    monkeypatch.setattr(plots, "imported", missing)
    with pytest.raises(SettingError, match=r"penstock\[report\]"):
        save_plots(recording(5), tmp_path / "never")
    assert not (tmp_path / "never").exists()
