"""The wheels: what is in them, and that they run from there. `make test-wheel` installs them, too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import penstock as ps

ROOT = Path(__file__).resolve().parents[2]


def built(folder: Path, project: Path) -> Path:
    """The wheel of a project, built into a folder."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*build, str(folder)], check=True, cwd=project, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_of_the_demo_holds_it_and_wants_the_same_release(tmp_path: Path) -> None:
    wheel = built(tmp_path, ROOT / "bench")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (about,) = (name for name in held if name.endswith("/METADATA"))
        metadata = archive.read(about).decode()
        (commands,) = (name for name in held if name.endswith("/entry_points.txt"))
        assert "demo = penstock_bench.cli:demo" in archive.read(commands).decode()
    source = ROOT / "bench" / "penstock_bench"
    assert {f"penstock_bench/{path.relative_to(source)}" for path in source.rglob("*.py")} <= held
    assert f"Requires-Dist: penstock[dashboard]=={ps.__version__}\n" in metadata
    assert wheel.name == f"penstock_bench-{ps.__version__}-py3-none-any.whl"


def test_the_wheel_holds_the_package_and_runs_from_there(tmp_path: Path) -> None:
    wheel = built(tmp_path, ROOT)
    assert wheel.name == f"penstock-{ps.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        held = {name for name in archive.namelist() if name.startswith("penstock/")}
    source = ROOT / "src" / "penstock"
    page = source / "observe" / "dashboard" / "static"
    files = [*source.rglob("*.py"), *(path for path in page.rglob("*") if path.is_file())]
    wanted = {f"penstock/{path.relative_to(source)}" for path in files}
    assert "penstock/observe/dashboard/static/index.html" in wanted
    assert held == wanted | {"penstock/py.typed"}
    site = str(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {site!r}); import penstock; print(penstock.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.stdout.startswith(str(tmp_path))
