"""When the check for known vulnerabilities fails, and when it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[2] / "scripts" / "audit.py"
_SPEC = importlib.util.spec_from_file_location("audit", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
audit = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(audit)

HOLE = {"id": "PYSEC-1", "aliases": ["GHSA-x"], "fix_versions": ["1.1"]}
HOLED = {"name": "holed", "version": "1.0", "vulns": [HOLE]}
WHOLE = {"name": "whole", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def told(*packages: dict[str, Any], **ignored: str) -> tuple[list[str], bool]:
    lines, passed = audit.verdict({"dependencies": packages}, ignored)
    return lines, passed


def test_a_known_vulnerability_fails() -> None:
    lines, passed = told(HOLED, WHOLE, UNKNOWN)
    assert not passed
    assert lines[0] == "holed 1.0: PYSEC-1, fixed in 1.1"
    assert lines[-1].endswith("2 of 3 packages were checked, 1 known vulnerabilities")


def test_one_that_is_ignored_with_a_reason_does_not() -> None:
    for name in ("PYSEC-1", "GHSA-x"):
        assert told(HOLED, **{name: "not used here"})[1]


def test_without_the_service_nothing_fails() -> None:
    assert told(UNKNOWN) == (
        ["audit: the service knows none of the packages: nothing was checked"],
        True,
    )


def test_every_exception_has_a_reason() -> None:
    assert all(reason.strip() for reason in audit.IGNORED.values())
