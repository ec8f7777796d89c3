"""Install the wheel in an empty environment and run the README's first flow: `make test-wheel`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 1_200


def first_flow(readme: str) -> str:
    """The first Python block of a page.

    >>> first_flow("text\\n```python\\nx = 1\\n```\\n")
    'x = 1\\n'
    """
    block = re.search(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError("The page has no block of Python: begin one with ```python")
    return block[1]


def newest_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("penstock-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"There is no wheel in {folder}: run make wheel")
    return wheels[-1]


def main() -> None:
    wheel = newest_wheel(_ROOT / "dist")
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as folder:
        print(f"Installing {wheel.name} in an empty environment")
        venv.create(f"{folder}/env", with_pip=True)
        python = f"{folder}/env/bin/python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{wheel}[dashboard]"], check=True, timeout=_LIMIT_S)
        print("Running the README's first flow")
        flow = Path(folder, "flow.py")
        flow.write_text(first_flow((_ROOT / "README.md").read_text()))
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK_"))
        }
        subprocess.run([python, str(flow)], check=True, timeout=_LIMIT_S, cwd=folder, env=inherited)


if __name__ == "__main__":
    main()
