"""Log lines: their formats, and that Penstock touches no logger but its own."""

from __future__ import annotations

import json
import logging
import logging.config
import subprocess
import sys
from collections.abc import Iterator

import pytest

import penstock as ps
from penstock.errors import SettingError
from penstock.logs import JsonFormatter, LogStyle, style_here, take_on

_OURS = logging.getLogger("penstock")
_HOSTS = logging.getLogger("penstock.hosts")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers, level, propagate = list(_OURS.handlers), _OURS.level, _OURS.propagate
    _OURS.handlers[:], _OURS.propagate = [], False  # pytest has handlers of its own
    yield
    _OURS.handlers[:], _OURS.propagate = handlers, propagate
    _OURS.setLevel(level)


def test_the_library_sets_up_no_logging_by_itself() -> None:
    code = "import logging, penstock.logs as p, penstock.driver.crew; print(p.style_here(), "
    code += "logging.getLogger('penstock').handlers, logging.getLogger().handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None [] []\n"


def test_text_lines_go_to_stderr_from_the_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    ps.log_to_stderr("warning")
    _HOSTS.info("not shown")
    _HOSTS.warning("Host %s is lost.", "sum/1", extra={"host": "sum/1"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Z WARNING penstock.hosts: Host sum/1 is lost.")
    assert not logging.getLogger("py4j").handlers[1:]


def test_a_second_call_takes_the_place_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    ps.log_to_stderr()
    ps.log_to_stderr("DEBUG", json=True)
    assert style_here() == LogStyle("DEBUG", json=True)
    _HOSTS.debug("once")
    assert json.loads(capsys.readouterr().err)["message"] == "once"


def test_json_lines_have_the_fields_of_the_line_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ps.log_to_stderr(json=True)
    try:
        raise ValueError("odd")
    except ValueError:
        _HOSTS.exception("Failed\nhere.", extra={"host": "sum/1", "epoch": 3, "path": object})
    (text,) = capsys.readouterr().err.splitlines()
    line = json.loads(text)
    assert list(line) == [
        *("time", "level", "logger", "message"),
        *("host", "epoch", "path", "traceback"),
    ]
    assert (line["level"], line["logger"], line["epoch"]) == ("ERROR", "penstock.hosts", 3)
    assert line["traceback"].endswith("ValueError: odd")


def test_the_formatter_works_in_a_configuration_of_ones_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": "penstock.logs.JsonFormatter"}},
            "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "json"}},
            "loggers": {"penstock": {"level": "INFO", "handlers": ["out"], "propagate": False}},
        }
    )
    _HOSTS.info("Hello.", extra={"step": "sum"})
    assert json.loads(capsys.readouterr().err)["step"] == "sum"
    assert style_here() == LogStyle("INFO", json=True), "hosts and couriers log likewise"


def test_a_task_takes_the_style_of_its_driver_once() -> None:
    for style in (LogStyle("INFO", json=True), LogStyle("INFO", json=True), None):
        take_on(style)
        handlers = [h for h in _OURS.handlers if isinstance(h.formatter, JsonFormatter)]
        assert len(handlers) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(SettingError, match="Unknown log level 'loud'"):
        ps.log_to_stderr("loud")
