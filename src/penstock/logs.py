"""Log lines: where they go, their two formats, and how the processes of a flow share them.

Penstock logs through Python's `logging`, to loggers below `penstock` (docs/logs.md lists them). It sets up
nothing by itself: an application's own configuration holds. `log_to_stderr` is for scripts and notebooks,
`JsonFormatter` for a configuration of your own. The fields of a line, such as `host` and `epoch`, are
attributes of its `LogRecord`.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from penstock.errors import SettingError

_ROOT = logging.getLogger("penstock")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes that any `LogRecord` has: all others are fields."""


@dataclass(frozen=True)
class LogStyle:
    """Level and format of a process's log lines."""

    level: str = "INFO"
    """Name of the lowest level that is shown: DEBUG, INFO, WARNING or ERROR."""
    json: bool = False
    """Whether each line is a JSON object."""


class TextFormatter(logging.Formatter):
    """Formats a line as text: time in UTC, level, logger, message.

    >>> record = logging.makeLogRecord({"name": "penstock.hosts", "levelname": "INFO", "msg": "Hello."})
    >>> record.created = 1_750_000_000.25
    >>> TextFormatter().format(record)
    '2025-06-15T15:06:40.250Z INFO penstock.hosts: Hello.'
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(  # noqa: N802 - logging's name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        return _moment(record)


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object: time (ISO 8601, UTC), level, logger, message, and its fields.

    >>> record = logging.makeLogRecord({"name": "penstock.hosts", "levelname": "INFO", "msg": "Hello."})
    >>> record.created, record.host = 1_750_000_000.25, "sum/1"
    >>> print(JsonFormatter().format(record))
    {"time": "2025-06-15T15:06:40.250Z", "level": "INFO", "logger": "penstock.hosts", "message": "Hello.", \
"host": "sum/1"}
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | fields, default=str)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the moment, as notebooks and tests replace it."""

    def __init__(self, style: LogStyle) -> None:
        logging.Handler.__init__(self)
        self.style = style
        self.setFormatter(JsonFormatter() if style.json else TextFormatter())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def log_to_stderr(level: str = "INFO", *, json: bool = False) -> None:
    """Show Penstock's log lines of this level and above on stderr, as text or as JSON.

    Hosts and couriers of flows that are started from here on log the same way, to their executors' stderr.
    Call it again to change level or format. Other loggers than `penstock` stay as they are.
    """
    name = level.upper()
    if name not in logging.getLevelNamesMapping():
        raise SettingError(f"Unknown log level {level!r}", hint="use DEBUG, INFO, WARNING or ERROR")
    take_on(LogStyle(name, json))


def take_on(style: LogStyle | None) -> None:
    """Log in this style in this process; None leaves it as it is."""
    ours = [handler for handler in _ROOT.handlers if isinstance(handler, _StderrHandler)]
    if style is None or [handler.style for handler in ours] == [style]:
        return
    for handler in ours:
        _ROOT.removeHandler(handler)
    _ROOT.addHandler(_StderrHandler(style))
    _ROOT.setLevel(style.level)


def style_here() -> LogStyle | None:
    """The style of this process, for the processes of a flow; None: nobody has configured logging."""
    handlers = _handlers()
    if not handlers:
        return None
    as_json = any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)
    return LogStyle(logging.getLevelName(_ROOT.getEffectiveLevel()), as_json)


def _handlers() -> list[logging.Handler]:
    return [*_ROOT.handlers, *(logging.getLogger().handlers if _ROOT.propagate else ())]


def _moment(record: logging.LogRecord) -> str:
    """When a line was logged: ISO 8601, in UTC."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
