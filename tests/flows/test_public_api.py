"""The public names, on which users may rely."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import penstock as ps


def test_every_public_name_is_there_and_is_documented() -> None:
    assert sorted(ps.__all__) == sorted(ps._HOME_OF)
    for name in ps.__all__:
        value = getattr(ps, name)
        assert value.__doc__, f"{name} has no docstring"


def test_no_public_name_is_a_module() -> None:
    # Importing a module of that name would put it in the place of the public one.
    assert not set(ps.__all__) & {module.name for module in pkgutil.iter_modules(ps.__path__)}


def test_the_public_names_are_these() -> None:
    assert set(ps.__all__) == {
        "Bounds", "CHANGE", "CheckpointError", "Decision", "Elastic", "Flow", "FlowError", "FlowQuery",
        "FunctionPrice", "HostLostError", "HostPrice", "HttpFunctions", "KeyedFlow", "KeyedProcessor",
        "LambdaFunctions", "LocalFunctions", "Migration", "NullKeyError", "PenstockError", "Policy",
        "ProtocolError", "QueryStatus", "Row", "RowIds", "SLA", "SettingError", "Settings", "StepError",
        "Tls",
        "StoreError", "Treatment", "Vitals", "Window", "WindowedFlow", "aggregator",
        "approx_distinct", "arrow_aggregator", "avg",
        "collect", "compiled", "configure", "count", "count_distinct", "first", "flow", "foreach_arrow",
            "foreach_batch", "hopping", "kafka", "rate", "source",
        "last", "log_to_stderr", "max", "min", "new_host", "session",
        "session_window", "sum", "to", "tumbling",
    }  # fmt: skip


def test_every_folder_has_a_docstring() -> None:
    folders = Path(ps.__path__[0]).rglob("__init__.py")
    assert not [
        folder for folder in folders if not ast.get_docstring(ast.parse(folder.read_text()))
    ]
