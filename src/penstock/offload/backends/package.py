"""Builds the archive for burst workers on a platform: Penstock, the flow's plan, and an entry point.

It lists the packages that Penstock needs, and includes them on request. It also holds a Dockerfile, which
builds an image of the same content: with Arrow and numba's compiler the archive exceeds Lambda's limit of
250 MB, and other platforms run images only. Kernels are compiled once, when the image is built, and not in
each cold start.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import cloudpickle

import penstock
from penstock.errors import FlowError, SettingError
from penstock.offload.backends.aws.handler import PLAN
from penstock.offload.backends.messages import flow_mark
from penstock.plan.steps import FlowPlan

Platform = Literal["lambda", "http"]
NEEDS = ("pyarrow", "numpy", "numba", "cloudpickle", "msgspec")
"""Packages that a burst worker needs. Spark is not needed: rows come as Arrow."""
_NEEDS_MORE: dict[Platform, tuple[str, ...]] = {"lambda": (), "http": ("starlette", "uvicorn")}
UNPACKED_LIMIT = 250 * 1024 * 1024
"""Lambda's limit for an unpacked archive, in bytes."""

_ENTRY = '''"""The entry point of a Lambda function for one flow, written by `penstock functions package`."""

import os
import shutil
from pathlib import Path

HERE = Path(__file__).parent
# Lambda allows writing only to /tmp; kernels of the image are copied there.
KERNELS = Path(os.environ.setdefault("NUMBA_CACHE_DIR", "/tmp/penstock-kernels"))
if (HERE / "kernels").is_dir() and KERNELS != HERE / "kernels":
    shutil.copytree(HERE / "kernels", KERNELS, dirs_exist_ok=True)

from penstock.offload.backends.aws.handler import Handler  # noqa: E402

handler = Handler.of(HERE)
'''

_LAMBDA_FILE = """FROM public.ecr.aws/lambda/python:{python}
COPY requirements.txt ${{LAMBDA_TASK_ROOT}}/
RUN pip install --no-cache-dir -r requirements.txt
COPY . ${{LAMBDA_TASK_ROOT}}/
# compile kernels for any CPU that Lambda may use
ENV NUMBA_CPU_NAME=generic
RUN NUMBA_CACHE_DIR=${{LAMBDA_TASK_ROOT}}/kernels python -c "import penstock_handler"
CMD ["penstock_handler.handler"]
"""

_HTTP_FILE = """FROM python:{python}-slim
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir -r requirements.txt
COPY . ./
# compile kernels for any CPU that the platform may use
ENV NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/app/kernels PORT=8080
RUN PENSTOCK_KEY= python -c "from penstock.offload.backends.http.app import app; app()" \\
    && useradd burst && chown -R burst kernels
USER burst
# PENSTOCK_KEY comes from the platform's secrets
CMD exec uvicorn --factory penstock.offload.backends.http.app:app --host 0.0.0.0 --port $PORT
"""


@dataclass(frozen=True)
class Packed:
    """An archive that `package` wrote."""

    path: Path
    requirements: tuple[str, ...]
    vendored: bool
    unpacked_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it has all packages and is within Lambda's limit, so that it can be uploaded as it is."""
        return self.vendored and self.unpacked_bytes <= UNPACKED_LIMIT


def package(
    flow: FlowPlan,
    to: Path,
    modules: Sequence[str] = (),
    vendor: bool = False,
    platform: Platform = "lambda",
) -> Packed:
    """Write the archive for a platform.

    Code of the user's `modules` is pickled by value, within the plan. Other modules that it imports must be
    installed there. With `vendor`, pip adds the required packages, for machines like this one.
    """
    requirements = tuple(f"{name}=={version(name)}" for name in (*NEEDS, *_NEEDS_MORE[platform]))
    flow_mark(flow)  # computed here, from the code of this process, and pickled with the plan
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    dockerfile = _LAMBDA_FILE if platform == "lambda" else _HTTP_FILE
    texts = {
        "requirements.txt": ("\n".join(requirements) + "\n").encode(),
        "Dockerfile": dockerfile.format(python=python).encode(),
        PLAN: _pickled(flow, modules),
    }
    if platform == "lambda":
        texts["penstock_handler.py"] = _ENTRY.encode()
    unpacked = sum(map(len, texts.values()))
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
        home = Path(penstock.__file__).parent
        unpacked += _add(archive, home.parent, sorted(home.rglob("*.py")))
        if vendor:
            with tempfile.TemporaryDirectory() as folder:
                _install(requirements, folder)
                unpacked += _add(archive, Path(folder), sorted(Path(folder).rglob("*")))
    return Packed(to, requirements, vendor, unpacked)


def flow_named(name: str) -> FlowPlan:
    """The plan of `module:name`, which is a flow, a plan, or a function that returns one of these."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise FlowError(f"{name!r} does not name a flow", hint="use module:name")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as missing:
        raise FlowError(
            f"cannot import {name}: {missing}", hint="run the command in the folder of the module"
        ) from missing
    if callable(value):
        value = value()
    plan = getattr(value, "plan", value)
    if not isinstance(plan, FlowPlan):
        raise FlowError(
            f"{name} is a {type(value).__name__}, not a flow",
            hint="name a flow, or a function without arguments that returns one",
        )
    return plan


def _pickled(flow: FlowPlan, names: Iterable[str]) -> bytes:
    modules = [importlib.import_module(name) for name in names]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(flow)
        return pickled
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _add(archive: zipfile.ZipFile, root: Path, files: Iterable[Path]) -> int:
    """Add files to the archive. Returns their size in bytes."""
    size = 0
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            archive.write(file, file.relative_to(root))
            size += file.stat().st_size
    return size


def _install(requirements: Sequence[str], folder: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--target", folder, *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SettingError(
            f"pip could not install the packages for burst workers: {done.stderr.strip()[-500:]}",
            hint="leave --vendor out, and install the archive's requirements.txt yourself",
        )
