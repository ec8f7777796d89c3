"""The wheel: what is in it, and that it runs from there. `make test-wheel` installs it, too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import penstock as ps

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_the_package_and_runs_from_there(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*build, str(tmp_path)], check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
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
