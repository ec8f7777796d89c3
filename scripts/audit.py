"""Check what requirements.lock names against known vulnerabilities. `make audit` is this.

It fails on a vulnerability that is not in IGNORED. Where the service that knows them cannot be reached, it
says so, and does not fail: nobody's change is to blame for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IGNORED: dict[str, str] = {}
"""Id of a vulnerability, such as GHSA-... -> why it does not matter here."""

_LIMIT_S = 300
_LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"


def verdict(report: Mapping[str, Any], ignored: Mapping[str, str]) -> tuple[list[str], bool]:
    """What to print of pip-audit's report, and whether the check passes."""
    packages = report["dependencies"]
    known = [package for package in packages if "skip_reason" not in package]
    if not known:
        return ["audit: the service knows none of the packages: nothing was checked"], True
    found = [
        (package, vulnerability)
        for package in known
        for vulnerability in package["vulns"]
        if not {vulnerability["id"], *vulnerability.get("aliases", ())} & set(ignored)
    ]
    lines = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability['fix_versions']) or 'no release yet'}"
        for package, vulnerability in found
    ]
    checked = f"audit: {len(known)} of {len(packages)} packages were checked"
    return [*lines, f"{checked}, {len(found)} known vulnerabilities"], not found


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(_LOCK), "--disable-pip"]
    shape = ["--require-hashes", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, *shape], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as failed:
        reason = str(failed)
        if isinstance(failed, json.JSONDecodeError):
            reason = (done.stderr.strip() or "no answer").splitlines()[-1][:200]
            if "onnection" not in reason and "imed out" not in reason:
                print(f"audit: pip-audit failed: {reason}")
                return 1
        print(f"audit: the service is not reachable, nothing was checked: {reason}")
        return 0
    lines, passed = verdict(report, IGNORED)
    print(*lines, sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
