"""Plug-ins from other packages, discovered by their entry points.

    penstock.commands     verbs of the `penstock` command: typer apps
    penstock.workloads    workloads of the simulator: functions of slots, delta_ms and seed

The package penstock-bench, for example, adds benchmarks and their workloads. Dependencies that only some
flows need are extras of Penstock; `imported` loads them.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

from penstock.errors import SettingError

Group = Literal["penstock.commands", "penstock.workloads"]


def extension_names(group: Group) -> list[str]:
    """Names of the plug-ins that installed packages register in a group."""
    from importlib.metadata import entry_points  # here, to keep `penstock --help` quick

    return sorted(entry_points(group=group).names)


def extension(group: Group, name: str) -> Any:
    """Load the plug-in that an installed package registers under a name in a group."""
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=group, name=name):
        return entry_point.load()
    if group == "penstock.commands":
        # A checkout that was installed before a verb was added has no entry point for it.
        with suppress(ImportError, AttributeError):
            return getattr(import_module("penstock_bench.cli"), name)
    raise SettingError(
        f"{name!r} is in the package penstock-bench, which is not installed",
        hint="in a checkout of Penstock: make setup; elsewhere: pip install the file penstock_bench-*.whl, "
        "which make wheel puts beside Penstock's own wheel in dist/",
    )


def imported(module: str, extra: str, purpose: str) -> Any:
    """Import a module that one of Penstock's extras installs; `purpose` names what needs it."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise SettingError(
            f"{purpose} needs the package {module}, which is not installed",
            hint=f"pip install 'penstock[{extra}]'",
        ) from missing
