"""A real S3 server on this machine, for tests and benchmarks: Versity's gateway on a folder.

It checks signatures and supports conditional writes (If-None-Match), multipart uploads and paged listings.
Writes are strongly consistent. It is built once with Go, into ~/.cache/penstock (or PENSTOCK_CACHE), which
takes about two minutes. It starts in a tenth of a second, and keeps its objects while it is down.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs

from penstock.errors import SettingError
from penstock.spark.maven import cached, is_cached
from penstock.state.store.s3 import s3_options

VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
_NAME = f"versitygw-{VERSION}"
"""Folder of the program in the cache."""
_BUILD_S, _COME_UP_S = 900, 30
BUCKET, REGION = "bucket", "us-east-1"


class S3Server:
    """A running server with an empty bucket named `bucket`. `endpoint` is its URL."""

    def __init__(self, program: Path, folder: Path) -> None:
        """Start a server that keeps its objects in the folder."""
        self._program, self._folder = program, folder
        self.bucket, self.access_key, self.secret_key = BUCKET, "penstock", secrets.token_hex(16)
        self._port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        for part in ("objects", "facts"):
            (folder / part).mkdir()
        self.start()
        options = dict(s3_options(self.settings())[0])
        pafs.S3FileSystem(**options, allow_bucket_creation=True).create_dir(BUCKET)

    def settings(self, endpoint: str = "") -> dict[str, str]:
        """Spark's settings for it, by their names after `fs.s3a.`, optionally with another endpoint."""
        return {
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "endpoint": endpoint or self.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
        }

    def start(self) -> None:
        """Start its process, with the same port and objects after a restart, and wait until it answers."""
        command = [str(self._program), "--port", f"127.0.0.1:{self._port}", "--region", REGION]
        # No --keep-alive: on reused connections, some requests after an upload fail with status 400.
        command += ["--health", "/health", "--quiet", "posix"]
        # A temporary folder may be on a file system without extended attributes.
        command += ["--sidecar", str(self._folder / "facts"), str(self._folder / "objects")]
        keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | keys, cwd=self._folder
            )
        until = time.monotonic() + _COME_UP_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                end = (self._folder / "log").read_text()[-2000:]
                raise SettingError(f"the S3 server does not answer: {end}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End its process at once."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/health", timeout=1).close()
        except (urllib.error.URLError, OSError):
            return False
        return True


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server that ends with the block. Raises `SettingError` if its program cannot be built."""
    program = s3_program()
    folder = Path(tempfile.mkdtemp(prefix="penstock-s3-"))
    try:
        server = S3Server(program, folder)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_s3() -> bool:
    """Whether the server's program is in the cache. Builds nothing."""
    return is_cached(_NAME)


def s3_program() -> Path:
    """The server's program, built if needed."""
    return cached(_NAME, _build) / "versitygw"


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise SettingError(
            "the S3 server is built with Go, which is not on the path",
            hint=f"install Go, or copy {folder} from a machine that has it",
        )
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        subprocess.run(
            [go, "install", f"{_MODULE}@{VERSION}"],
            check=True, capture_output=True, text=True, timeout=_BUILD_S,
            env=os.environ | {"GOBIN": str(part)},
        )  # fmt: skip
        part.rename(folder)
    except (OSError, subprocess.SubprocessError) as failed:
        output = str(getattr(failed, "stderr", "") or failed)[-500:]
        raise SettingError(
            f"cannot build the S3 server: {output}",
            hint=f"check the network, or copy {folder} from a machine that has it",
        ) from failed
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
