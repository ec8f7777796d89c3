"""Install the wheels in an empty environment, and run the README's flow and the demo: `make test-wheel`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 1_200
_DEMO = ("demo", "--seconds", "8", "--no-open", "--sla", "30s")
"""A short demo. What is tried is that it runs, not how fast this machine is: the bound is a long one."""


def first_flow(readme: str) -> str:
    """The first Python block of a page.

    >>> first_flow("text\\n```python\\nx = 1\\n```\\n")
    'x = 1\\n'
    """
    block = re.search(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError("The page has no block of Python: begin one with ```python")
    return block[1]


def newest_wheel(folder: Path, package: str) -> Path:
    wheels = sorted(folder.glob(f"{package}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"There is no wheel of {package} in {folder}: run make wheel")
    return wheels[-1]


class Environment:
    """An environment of its own, in a folder where its programs run too."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        venv.create(f"{folder}/env", with_pip=True)
        self._inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK_"))
        }

    def install(self, *wheels: str) -> None:
        pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run([*pip, *wheels])

    def run(self, words: Sequence[str]) -> None:
        """Run a program of the environment, which must succeed."""
        if code := self.result_of(words).returncode:
            sys.exit(f"{' '.join(words)} has ended with {code}")

    def result_of(
        self, words: Sequence[str], capture: bool = False
    ) -> subprocess.CompletedProcess[str]:
        program, *arguments = words
        return subprocess.run(
            [f"{self._folder}/env/bin/{program}", *arguments],
            timeout=_LIMIT_S,
            cwd=self._folder,
            env=self._inherited,
            capture_output=capture,
            text=True,
        )


def must_name_the_package(tried: Environment) -> None:
    """Without the package of the demo, the command says what to install."""
    refused = tried.result_of(["penstock", *_DEMO], capture=True)
    if refused.returncode != 2 or "penstock_bench-*.whl" not in refused.stderr:
        sys.exit(f"penstock demo does not say what it needs: {refused.stderr or refused.stdout}")


def main() -> None:
    product, bench = (newest_wheel(_ROOT / "dist", name) for name in ("penstock", "penstock_bench"))
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as folder:
        print(f"Installing {product.name} in an empty environment", flush=True)
        tried = Environment(folder)
        tried.install(f"{product}[dashboard]")
        must_name_the_package(tried)
        print("Running the README's first flow", flush=True)
        flow = Path(folder, "flow.py")
        flow.write_text(first_flow((_ROOT / "README.md").read_text()))
        tried.run(["python", str(flow)])
        print(f"Installing {bench.name} too, and running the demo", flush=True)
        tried.install(f"{product}[dashboard]", str(bench))
        tried.run(["penstock", *_DEMO])


if __name__ == "__main__":
    main()
