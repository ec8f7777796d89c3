"""What other packages add to Penstock, found by their entry points.

    penstock.commands     verbs of the `penstock` command: typer apps
    penstock.workloads    workloads of the simulator: functions of slots, delta_ms and seed

Benchmarks and their workloads are such a package, penstock-bench. Packages that only some flows need come
with extras of Penstock (`imported`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from penstock.errors import SettingError

Group = Literal["penstock.commands", "penstock.workloads"]


def extension_names(group: Group) -> list[str]:
    """What installed packages have in a group."""
    return sorted(entry_points(group=group).names)


def extension(group: Group, name: str) -> Any:
    """The object that an installed package has in a group under a name."""
    for found in entry_points(group=group, name=name):
        return found.load()
    raise SettingError(
        f"{name!r} is in the package penstock-bench, which is not installed",
        hint="in a checkout of Penstock: make setup; elsewhere: pip install penstock-bench",
    )


def imported(module: str, extra: str, purpose: str) -> Any:
    """A module that comes with one of Penstock's extras."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise SettingError(
            f"{purpose} needs the package {module}, and it is not installed",
            hint=f"pip install 'penstock[{extra}]'",
        ) from missing
