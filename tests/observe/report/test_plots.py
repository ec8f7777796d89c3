from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.control.treat.decision import Treatment
from penstock.errors import SettingError
from penstock.model import SLA, HostId, LatencyBound
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


def test_a_missed_bound_that_is_not_the_first_is_shaded_too(tmp_path: Path) -> None:
    lax = SLA(9_000, 1_000, more=(LatencyBound(2_500, 1_000, p99=True),))
    save_plots(recording(60, burst=range(20, 40), sla=lax), tmp_path)
    assert (249, 235, 224) in colours(tmp_path / "latency.png")


def test_hosts_that_never_came_up_and_slots_without_an_owner_have_no_colour(tmp_path: Path) -> None:
    recorded = recording(10)
    steps = [m.steps[0] for m in recorded.kept]
    none_up = [replace(step, hosts=(), owner=(-1,) * 8) for step in steps]
    no_slots = tuple(replace(host, slots=0) for host in steps[0].hosts)
    some = [replace(step, hosts=no_slots, owner=(-1, 0, 9, *step.owner[3:])) for step in steps]
    for name, changed in (("none", none_up), ("some", some)):
        kept = [replace(m, steps=(s,)) for m, s in zip(recorded.kept, changed, strict=True)]
        files = save_plots(replace(recorded, kept=kept), tmp_path / name)
        assert "slots.png" in [file.name for file in files]
    blue = (0, 114, 178)
    assert blue in colours(tmp_path / "some" / "slots.png")
    assert blue not in colours(tmp_path / "none" / "slots.png")


def test_each_kind_of_event_has_a_mark_even_an_unknown_one() -> None:
    kinds = ("split", "failed", "move by hand", "scale out, balance", "something new")
    found = plots._marked([{"kind": kind, "time_ms": 7.0} for kind in kinds])
    assert set(found) == {
        "split", "failed", "move by hand", "scale out", "balance", "something new",
    }  # fmt: skip
    assert set(found) - set(plots._MARKS) == {"something new"}


def test_moves_by_hand_are_marked() -> None:
    drawn = plots._drawn(
        recording(60, burst=range(20, 40))
    )  # a slot moves, and the journal is silent
    assert list(plots._marked(drawn.events)) == ["move by hand"]


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
