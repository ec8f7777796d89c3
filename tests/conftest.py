"""One Spark session for all tests, and a check that nothing is left behind by any of them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.spark.connector import has_connector
from penstock_bench.s3_server import S3Server, has_s3, running_s3
from tests.testing.left_behind import MARK, OF_A_TEST, nothing_left_behind

# A busy machine is no failure. The same examples each time, but for `make fuzz`, which looks for others.
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize="PENSTOCK_FUZZ" not in os.environ, max_examples=50
)
hypothesis.settings.load_profile("tests")

# A shell starts what it leaves in the background with SIGINT ignored, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


WRONG_RESULTS = Path(__file__).parent.parent / ".venv" / "wrong-results"
"""A file that is there if a flow's result was wrong. `make test` then fails, whatever a second run says."""


def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Note a failed comparison with the right result: all of them are in functions named `check`."""
    if call.excinfo is not None:
        names = {entry.name for entry in call.excinfo.traceback}
        if "check" in names and "until" not in names:
            WRONG_RESULTS.touch()


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This run's temporary files, and those of its processes, are in a folder that nobody else uses; so are
    the keys of its queries."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv(MARK, str(os.getpid()))
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    with nothing_left_behind(request.node.nodeid, *OF_A_TEST):
        yield


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    with nothing_left_behind(request.node.nodeid):
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = ps.session("penstock-tests", cores=16, kafka=has_connector())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """A real S3 server with an empty bucket, for all tests that need it. It is built where tests that are
    marked for it run."""
    if not has_s3() and not any(one.get_closest_marker("s3") for one in request.session.items):
        pytest.skip("no S3 server yet: make test-s3 builds it")
    with ExitStack() as ends:
        try:
            yield ends.enter_context(running_s3())
        except SettingError as missing:
            pytest.skip(f"no S3 server: {missing}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
